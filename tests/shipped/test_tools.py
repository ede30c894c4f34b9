"""The Python that a job brings, downloaded by a machine without a bucket, from a real mirror."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.environment_machine import UV, Machine, python_build, uv_path
from tests.support.package_index import package_index
from tests.support.polling import until
from tests.support.python_mirror import Fault, PythonMirror, portable_interpreter, python_mirror
from tests.support.supervised_worker import PYTHONS, Worker, worker_fixture
from tests.support.wheels import make_wheel
from tpuctl.jobs.shipped.environment import tool_archive

MINOR = "3.12" if sys.version_info[:2] != (3, 12) else "3.11"
SAY = "import sys; print(sys.version.split()[0], sys.prefix, sys.base_prefix)"

new_worker = worker_fixture([sys.executable])


@pytest.fixture(scope="session")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonMirror]:
    with python_mirror(tmp_path_factory.mktemp("mirror"), [MINOR]) as mirror:
        yield mirror


@pytest.fixture
def version(mirror: PythonMirror) -> str:
    return portable_interpreter(MINOR).version


@pytest.fixture
def machine(tmp_path: Path, mirror: PythonMirror, version: str) -> Machine:
    machine = Machine(tmp_path, pip=False)
    machine.has_uv()
    machine.install["python"] = python_build(mirror, version)
    machine.variables |= mirror.variables
    return machine


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).name)
def test_job_without_packages_has_its_own_python(
    machine: Machine, mirror: PythonMirror, version: str, python: str
) -> None:
    machine.interpreter = python
    environment = machine.create_environment()
    key = machine.install["python"]["key"]
    base = machine.home / ".tpuctl/tools" / key / "python"
    assert machine.evaluate(environment, SAY).split() == [version, str(environment), str(base)]
    assert machine.result()["path"] == [f"{environment}/bin"]
    log = machine.log().decode()
    assert f"tpuctl: getting Python {version}\n" in log
    assert f"tpuctl: downloaded Python {version} in " in log
    downloads = len(mirror.requests)
    (machine.folder / "log").write_bytes(b"")
    assert machine.create_environment() == environment
    assert machine.log() == b""
    assert len(mirror.requests) == downloads
    names = {path.name for path in base.parent.parent.iterdir()}
    assert names == {key, f"{key}.lock", UV["key"]}


def test_packages_are_installed_for_it_without_the_images(machine: Machine) -> None:
    make_wheel(machine.wheels, "small-library", "3.0", requires=["array-library"])
    make_wheel(machine.wheels, "array-library", "9.0")  # pinned by the image's TensorFlow
    make_wheel(machine.wheels, "tensorflow", "3.0")
    environment = machine.create_environment("small-library\ntensorflow\n")
    code = "import tensorflow, array_library as a; print(tensorflow.from_wheel, a.__version__)"
    assert machine.evaluate(environment, code) == "tensorflow 9.0"
    code = "import importlib.util; print(importlib.util.find_spec('free_library'))"
    assert machine.evaluate(environment, code) == "None"


def test_environment_is_of_the_exact_build(machine: Machine, version: str) -> None:
    make_wheel(machine.wheels, "small-library", "3.0")
    first = machine.create_environment("small-library\n")
    build = machine.install["python"]
    other = {**build, "key": build["key"].replace("20261110", "20261111")}
    second = machine.create_environment("small-library\n", python=other)
    assert second != first
    assert machine.create_environment("small-library\n", python=None) not in (first, second)


@pytest.mark.soak
def test_pip_installs_for_it_without_uv(machine: Machine, version: str) -> None:
    environment = machine.create_environment()
    machine.install["uv"] = None
    make_wheel(machine.wheels, "small-library", "3.0")
    another = machine.create_environment("small-library\n")
    assert another != environment
    code = "import sys, small_library; print(sys.version.split()[0], small_library.__version__)"
    assert machine.evaluate(another, code) == f"{version} 3.0"


def test_all_commands_use_the_jobs_python(
    new_worker: Worker, mirror: PythonMirror, version: str
) -> None:
    """As in `test_all_commands_use_same_python`, without packages."""
    tool = new_worker.home / ".tpuctl/tools" / UV["key"]
    tool.mkdir(parents=True)
    (tool / "uv").symlink_to(uv_path())
    (tool / "complete").touch()
    report = "import sys; print(sys.version.split()[0], sys.executable)"
    command = f'{{}} -c "{report}"'
    shell = "; ".join(command.format(name) for name in ("python", "python3"))
    install = {"python": python_build(mirror, version), "uv": UV}
    new_worker.write_spec(
        "", argv=["sh", "-c", shell + "; echo $VIRTUAL_ENV"], install=install, env=mirror.variables
    )
    new_worker.record("start")
    log, record = new_worker.follow()
    assert record.state == "succeeded", log.decode()
    first, second, environment = log.decode().splitlines()[-3:]
    assert first == f"{version} {environment}/bin/python"
    assert second == f"{version} {environment}/bin/python3"


# Bad input ----------------------------------------------------------------------------------


def test_python_that_nothing_has_is_one_message(
    machine: Machine, mirror: PythonMirror, version: str
) -> None:
    downloads = machine.home / "downloads.json"
    url = "http://127.0.0.1:9/python.tar.gz"
    rows = {name: {**row, "url": url} for name, row in mirror.rows.items()}
    downloads.write_text(json.dumps(rows))
    machine.variables.update(UV_PYTHON_DOWNLOADS_JSON_URL=str(downloads), UV_HTTP_RETRIES="0")
    done = machine.create()
    assert done.returncode == 1
    (line,) = done.stdout.decode().splitlines()
    assert line.startswith(
        f"Python {version} is not in the bucket, and this machine could not download it "
        "(127.0.0.1:9 cannot be reached (Connection refused"
    )
    assert "UV_PYTHON_INSTALL_MIRROR" in line
    assert "HTTPS_PROXY" in line
    assert not (machine.home / ".tpuctl/envs").exists()


@pytest.mark.parametrize("fault", ["truncate", "wrong bytes"])
def test_damaged_download_is_not_used(
    machine: Machine, mirror: PythonMirror, version: str, fault: Fault
) -> None:
    machine.variables["UV_HTTP_RETRIES"] = "0"
    mirror.fault = fault
    try:
        done = machine.create()
    finally:
        mirror.fault = ""
    assert done.returncode == 1
    (line,) = done.stdout.decode().splitlines()
    assert line.startswith(f"Python {version} is not in the bucket, and this machine could not")
    key = machine.install["python"]["key"]
    names = {path.name for path in (machine.home / ".tpuctl/tools").iterdir()}
    assert names == {UV["key"], f"{key}.lock"}
    assert machine.create_environment()


@pytest.mark.soak
def test_mirror_that_the_job_names_is_used(machine: Machine, mirror: PythonMirror) -> None:
    machine.variables |= mirror.mirror_variables
    count = len(mirror.requests)
    machine.create_environment()
    assert len(mirror.requests) == count + 1


def test_uv_that_nothing_has_is_one_message(machine: Machine) -> None:
    """The image has no pip either."""
    tool = machine.home / ".tpuctl/tools" / UV["key"]
    (tool / "complete").unlink()
    done = machine.create()
    assert done.returncode == 1
    (line,) = done.stdout.decode().splitlines()
    assert line.startswith(f"uv {UV['version']} is not in the bucket, and this machine could not")
    assert "PIP_INDEX_URL" in line


@pytest.mark.soak
def test_machine_downloads_uv_from_its_index(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.install["uv"] = {**UV, "key": "uv-1.0-any", "version": "1.0"}
    wheel = make_wheel(tmp_path / "index", "uv", "1.0")
    program = '#!/bin/sh\necho "$@" > ~/arguments\nexit 3\n'
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("uv-1.0.data/scripts/uv", program)
    make_wheel(tmp_path / "index", "small-library", "3.0")
    with package_index(tmp_path / "index") as index:
        del machine.variables["PIP_NO_INDEX"], machine.variables["PIP_FIND_LINKS"]
        machine.variables["PIP_INDEX_URL"] = index.url
        assert machine.create("small-library\n").returncode == 1
    assert (tmp_path / "arguments").read_text().startswith("pip install --no-progress")
    files = (tmp_path / ".tpuctl/tools/uv-1.0-any").iterdir()
    assert {path.name for path in files} == {"uv", "complete"}


def test_python_with_another_checksum_is_refused(machine: Machine, version: str) -> None:
    """uv verifies the archive by its own list, and the machine by the job's record."""
    machine.spec = {"job": "j", "attempt": 1, "worker": 0, "bucket": "absent", "tools": "t"}
    machine.variables["GCE_METADATA_HOST"] = "127.0.0.1:9"
    build = {**machine.install["python"], "sha256": "0" * 64}
    done = machine.create(python=build)
    assert done.returncode == 1
    assert f"Python {version} as downloaded is not the job's".encode() in done.stdout
    assert not (machine.home / ".tpuctl/tools" / build["key"]).exists()


@pytest.mark.parametrize(
    ("name", "link", "kind"),
    [
        ("../outside", "", tarfile.REGTYPE),
        ("/tmp/outside", "", tarfile.REGTYPE),
        ("python/link", "../../outside", tarfile.SYMTYPE),
        ("python/link", "/etc/passwd", tarfile.SYMTYPE),
        ("python/link", "../outside", tarfile.LNKTYPE),
        ("python/device", "", tarfile.CHRTYPE),
        ("python/other", "", tarfile.REGTYPE),  # no program
    ],
)
def test_archive_stays_in_its_folder(tmp_path: Path, name: str, link: str, kind: bytes) -> None:
    archive = tmp_path / "tool.tar.gz"
    with tarfile.open(archive, "w:gz") as target:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        target.addfile(info, io.BytesIO())
    tool = tool_archive.Tool("Python 3.99", {"key": "python"}, tool_archive.PYTHON)
    with pytest.raises(ValueError, match=r"is not a file of|has no python/bin"):
        tool_archive.extract(str(archive), str(tmp_path / "home"), tool)
    assert not (tmp_path / "outside").exists()


def test_damaged_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "tool.tar.gz"
    tool = tool_archive.Tool("uv 1.0", {"key": "uv"}, tool_archive.UV)
    for content in (b"", b"no archive", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03abc"):
        archive.write_bytes(content)
        with pytest.raises(ValueError, match=r"is damaged|has no uv"):
            tool_archive.extract(str(archive), str(tmp_path / "home"), tool)


@pytest.mark.parametrize("key", ["..", "../x", "a/b", "", "-x"])
def test_key_of_a_tool_is_a_name(key: str) -> None:
    with pytest.raises(tool_archive.Failure, match="is not the key of a tool"):
        tool_archive.Tool("uv", {"key": key}, tool_archive.UV)


# Interruptions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seconds", [0.15, *(pytest.param(0.3 * n, marks=pytest.mark.soak) for n in range(1, 9))]
)
def test_kill_at_any_time_leaves_nothing_half(
    machine: Machine, version: str, seconds: float
) -> None:
    make_wheel(machine.wheels, "small-library", "3.0")
    (machine.folder / "code/requirements.txt").write_text("small-library\n")
    install = {**machine.install, "requirements": "requirements.txt"}
    with machine.begin(machine.folder, **install) as process:
        until(lambda: b"getting Python" in machine.log() or process.poll() is not None, "start")
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    environment = machine.create_environment("small-library\n")
    code = "import sys, small_library; print(sys.version.split()[0])"
    assert machine.evaluate(environment, code) == version
    leftovers = (machine.home / ".tpuctl").rglob("*.download")
    assert not list(leftovers)


def test_kill_amid_download_leaves_nothing_half(
    machine: Machine, mirror: PythonMirror, version: str
) -> None:
    mirror.fault, mirror.fault_after = "hang", 1_000_000
    with machine.begin(machine.folder, **machine.install) as process:
        assert mirror.is_hanging.wait(60)
        os.killpg(process.pid, signal.SIGKILL)
    mirror.fault = ""
    mirror.is_hanging.clear()
    environment = machine.create_environment()
    assert machine.evaluate(environment, SAY).split()[0] == version
    assert not list((machine.home / ".tpuctl").rglob("*.download"))
