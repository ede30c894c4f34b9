"""The last line of a failed installation, with real installers and a real index on loopback."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.environment_machine import Machine
from tests.support.package_index import PASSWORD, PackageIndex, package_index
from tests.support.wheels import make_source, make_wheel
from tpuctl.jobs.shipped.environment.installer_errors import explain, place

UNUSED_INDEX = "http://127.0.0.1:9/"  # the discard port
ZEROS = "0" * 64
# Builds its wheel with a compiler that no image has.
BACKEND = """
import os, subprocess

def prepare_metadata_for_build_wheel(target, config_settings=None):
    os.mkdir(os.path.join(target, "native-1.0.dist-info"))
    with open(os.path.join(target, "native-1.0.dist-info", "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: native\\nVersion: 1.0\\n")
    return "native-1.0.dist-info"

def build_wheel(target, config_settings=None, metadata_directory=None):
    subprocess.check_call(["absent-linux-gnu-gcc", "-c", "native.c"])
"""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    folder = tmp_path / "index"
    make_wheel(folder, "plain", "1.0")
    make_wheel(folder, "chained", "1.0", requires=["absent-thing>=2"])
    make_wheel(folder, "foreign", "1.0").rename(folder / "foreign-1.0-cp27-cp27m-win32.whl")
    make_source(folder, "native", BACKEND)
    with package_index(folder) as index:
        yield index


@pytest.fixture(params=["uv", pytest.param("pip", marks=pytest.mark.soak)])
def machine(request: pytest.FixtureRequest, tmp_path: Path, index: PackageIndex) -> Machine:
    machine = Machine(tmp_path)
    del machine.variables["PIP_NO_INDEX"], machine.variables["PIP_FIND_LINKS"]
    machine.variables.update(PIP_INDEX_URL=index.url, PIP_RETRIES="1", PIP_CONFIG_FILE=os.devnull)
    if request.param == "uv":
        machine.has_uv()
    return machine


PLACE = re.compile(r" \(requirements\.txt:1\)$")


def message(machine: Machine, requirements: str) -> str:
    """The only line of a job whose requirements cannot be installed."""
    done = machine.create(requirements)
    assert done.returncode == 1, machine.log().decode()
    (line,) = done.stdout.decode().splitlines()
    prefix = "requirements.txt could not be installed: "
    assert line.startswith(prefix), machine.log().decode()
    assert {path.suffix for path in (machine.home / ".tpuctl/envs").iterdir()} == {".lock"}
    return PLACE.sub("", line[len(prefix) :])


def test_wrong_hash_is_named(machine: Machine, index: PackageIndex) -> None:
    line = message(machine, f"plain==1.0 --hash=sha256:{ZEROS}\n")
    assert line.startswith(f"plain 1.0 does not have the required hash: expected sha256 {ZEROS}, ")
    assert line.endswith("; nothing was installed")
    index.hashes = {"plain-1.0-py3-none-any.whl": ZEROS}
    assert "plain 1.0 does not have the required hash" in message(machine, "plain\n").replace(
        "plain-1.0", "plain 1.0"
    )


@pytest.mark.parametrize(
    ("requirement", "start", "end"),
    [
        ("foreign", "foreign", "for this Python and platform"),
        ("absent", "absent does not exist in the index", ""),
        ("plain==9", "plain==9 does not exist in the index", ""),
        ("chained", "absent-thing", "does not exist in the index"),
        ("native", "native", "building it needs absent-linux-gnu-gcc, which the image lacks"),
        ("--version", "", "--version"),
    ],
)
def test_package_and_reason_are_named(
    machine: Machine, requirement: str, start: str, end: str
) -> None:
    if requirement == "--version":
        done = machine.create(dependencies=[requirement])
        line = done.stdout.decode().rpartition("installed: ")[2]
    else:
        line = message(machine, requirement + "\n")
    assert line.startswith(start)
    assert end in line


@pytest.mark.parametrize(
    ("status", "text"),
    [(401, "asks for a password (401 Unauthorized)"), (403, "(403 Forbidden)"), (500, "500")],
)
def test_index_that_refuses_is_named(
    machine: Machine, index: PackageIndex, status: int, text: str
) -> None:
    index.status = status
    line = message(machine, "plain\n")
    assert index.address in line
    assert text in line
    assert ("secret" in line) == (status != 500)


def test_index_that_cannot_be_reached_is_named(machine: Machine) -> None:
    machine.variables["PIP_INDEX_URL"] = UNUSED_INDEX
    line = message(machine, "plain\n")
    assert line.startswith("127.0.0.1:9 cannot be reached (")
    assert "Connection refused" in line


def test_conflict_is_explained(machine: Machine, index: PackageIndex) -> None:
    make_wheel(index.folder, "plain", "2.0")
    make_wheel(index.folder, "old", "1.0", requires=["plain<2"])
    line = message(machine, "old\nplain>=2\n")
    assert "old" in line
    assert "plain" in line


def test_password_is_not_shown(machine: Machine, index: PackageIndex) -> None:
    index.password = PASSWORD
    machine.variables["PIP_INDEX_URL"] = index.url_with_password
    line = message(machine, "absent\n")
    assert "absent does not exist" in line
    assert PASSWORD not in line
    assert PASSWORD.encode() not in machine.log()


@pytest.mark.parametrize(
    "text",
    [
        # Printed by uv 0.13 and pip 23 on a file system of 6 MB.
        "error: Failed to install: big-1.0-py3-none-any.whl (big==1.0)\n"
        "  cause: Failed to copy to `/e/big/x.bin`\n"
        "  cause: failed to copy file from /c/x.bin to /e/big/.tmp: No space left on device (os "
        "error 28)\n",
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
    ],
)
def test_full_disk_is_recognized(text: str) -> None:
    assert explain(text) == "the disk of this machine is full (No space left on device)"


def test_unknown_failure_has_the_installers_words() -> None:
    assert explain("Using Python\nerror: Something\n  cause: Broke\n") == "Something: Broke"
    assert explain("ERROR: Oh no.\nERROR: ResolutionImpossible: x\n") == "Oh no"
    assert explain("nothing to see\n") == ""


@pytest.mark.parametrize(
    ("reason", "file", "text", "line"),
    [
        ("plain 1.0 does not", "requirements.txt", "# plain\nplainer\nPlain==1.0 \\\n", 3),
        ("plain==9 does not", "requirements.txt", "other\nplain[extra]>=9\n", 2),
        ("small-library 1 has", "requirements.txt", "small_library\n", 1),
        (
            "plain 1.0 does",
            "uv.lock",
            'dependencies = [\n{ name = "plain" },\n]\nname = "plain"',
            4,
        ),
        ("plain does", "pyproject.toml", 'dependencies = ["other", "plain>1"]', 1),
        (
            "plain has",
            "train.py",
            '# /// script\n# dependencies = [\n#   "plain",\n# ]\n# ///\n',
            3,
        ),
        ("the index at HOST asks for", "requirements.txt", "plain\n", 0),
        ("plain 1.0 has", "requirements.txt", "helper\n", 0),
    ],
)
def test_place_of_the_requirement_is_named(reason: str, file: str, text: str, line: int) -> None:
    assert place(reason, [(file, text)]) == (f" ({file}:{line})" if line else "")
