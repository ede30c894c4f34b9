"""Environments of jobs: made over a real image by the shipped file, with wheels made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import tpuctl.jobs

SCRIPT = Path(tpuctl.jobs.__path__[0]) / "environment.py"


def make_wheel(
    folder: Path, name: str, version: str, *, module: str = "", requires: Sequence[str] = ()
) -> Path:
    """A wheel with one module that knows its version."""
    module = module or name.replace("-", "_")
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    contents = {
        f"{module}/__init__.py": f"__version__ = {version!r}\nfrom_wheel = {name!r}\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/top_level.txt": f"{module}\n",
    }
    record = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**contents, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return wheel


class Machine:
    """An image with TensorFlow of another name in it, and a job's folder. No index is asked."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.wheels = home / "wheels"
        self.wheels.mkdir()
        self.folder = home / "job"
        (self.folder / "code").mkdir(parents=True)
        (self.folder / "spec.json").write_text('{"bundle": {"sha256": "1"}}')
        (self.folder / "log").touch()
        image = home / "image"
        venv.create(image, with_pip=False, symlinks=True)
        self.python = image / "bin/python"
        packages = next((image / "lib").iterdir()) / "site-packages"
        build = home / "image-wheels"
        for wheel in (
            make_wheel(
                build,
                "tensorflow-cpu",
                "2.19.1",
                module="tensorflow",
                requires=["array-library>=1,<3", "absent-library", "extra-thing; extra == 'x'"],
            ),
            make_wheel(build, "array-library", "1.5"),
            make_wheel(build, "extra-thing", "1.0"),
            make_wheel(build, "free-library", "1.0"),
        ):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(packages)

    @property
    def variables(self) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": os.devnull,
        }

    def make(self, requirements: str) -> subprocess.CompletedProcess[bytes]:
        path = self.folder / "code/requirements.txt"
        path.write_text(requirements)
        argv = [sys.executable, "-S", "-I", SCRIPT, "make", self.folder, path, self.python]
        return subprocess.run(
            [str(part) for part in argv],
            env=self.variables,
            capture_output=True,
            timeout=120,
            check=False,
        )

    def made(self, requirements: str) -> Path:
        done = self.make(requirements)
        assert done.returncode == 0, (done.stdout + done.stderr + self.log()).decode()
        return Path(json.loads((self.folder / "environment.json").read_text())["home"])

    def log(self) -> bytes:
        return (self.folder / "log").read_bytes()

    def evaluate(self, environment: Path, code: str) -> str:
        argv = [str(environment / "bin/python"), "-c", code]
        return subprocess.check_output(argv, env=self.variables).decode().strip()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


VERSION_OF = "from importlib.metadata import version; print(version({!r}))"


def test_requirements_come_on_top_of_the_image(machine: Machine) -> None:
    make_wheel(machine.wheels, "small-library", "3.0")
    environment = machine.made("small-library\n")
    code = "import small_library, tensorflow; print(small_library.__version__, tensorflow)"
    seen = machine.evaluate(environment, code)
    assert seen.startswith("3.0 ")
    assert str(machine.home / "image") in seen
    log = machine.log().decode().splitlines()
    assert log[0] == "tpuctl: installing requirements.txt"
    assert log[1].startswith("tpuctl: installed requirements.txt in ")
    assert len(log) == 2


def test_tensorflow_of_another_name_satisfies_and_stays(machine: Machine) -> None:
    make_wheel(machine.wheels, "layers", "1.0", requires=["tensorflow>=2.19,<2.20"])
    make_wheel(machine.wheels, "tensorflow", "2.19.9")  # what must not be installed
    environment = machine.made("layers\n")
    code = "import tensorflow; print(tensorflow.from_wheel, tensorflow.__version__)"
    assert machine.evaluate(environment, code) == "tensorflow-cpu 2.19.1"
    assert machine.evaluate(environment, VERSION_OF.format("tensorflow")) == "2.19.1"
    assert machine.evaluate(environment, VERSION_OF.format("layers")) == "1.0"


def test_what_tensorflow_depends_on_stays_and_the_rest_is_free(machine: Machine) -> None:
    make_wheel(machine.wheels, "array-library", "2.0")
    make_wheel(machine.wheels, "free-library", "2.0")
    make_wheel(machine.wheels, "extra-thing", "2.0")
    environment = machine.made("free-library>=2\narray-library>=1\nextra-thing==2.0\n")
    assert machine.evaluate(environment, VERSION_OF.format("array-library")) == "1.5"
    assert machine.evaluate(environment, VERSION_OF.format("free-library")) == "2.0"
    code = "import extra_thing; print(extra_thing.__version__)"
    assert machine.evaluate(environment, code) == "2.0"


@pytest.mark.parametrize(
    "wanted", ["array-library==2.0", "tensorflow==2.18.0", "tensorflow-cpu==2"]
)
def test_replacing_the_image_fails_and_the_log_has_it_whole(machine: Machine, wanted: str) -> None:
    make_wheel(machine.wheels, "array-library", "2.0")
    make_wheel(machine.wheels, "tensorflow", "2.18.0")
    make_wheel(machine.wheels, "tensorflow-cpu", "2", module="tensorflow")
    done = machine.make(wanted + "\n")
    assert done.returncode == 1
    assert done.stdout == b"requirements.txt could not be installed\n"
    assert b"ERROR" in machine.log()
    assert wanted.partition("=")[0].encode() in machine.log()


def test_same_requirements_are_made_once(machine: Machine) -> None:
    make_wheel(machine.wheels, "small-library", "3.0")
    first = machine.made("small-library\n")
    (machine.folder / "log").write_bytes(b"")
    assert machine.made("small-library\n") == first
    assert machine.log() == b""
    assert machine.made("small-library  # other bytes\n") != first


def test_a_half_made_environment_is_made_again(machine: Machine) -> None:
    make_wheel(machine.wheels, "small-library", "3.0")
    first = machine.made("small-library\n")
    (first / "complete").unlink()
    (first / "leftover").touch()
    assert machine.made("small-library\n") == first
    assert not (first / "leftover").exists()


def test_requirements_that_name_files_belong_to_their_bundle(machine: Machine) -> None:
    wheel = make_wheel(machine.folder / "code", "small-library", "3.0")
    first = machine.made(f"./{wheel.name}\n")
    (machine.folder / "spec.json").write_text('{"bundle": {"sha256": "2"}}')
    assert machine.made(f"./{wheel.name}\n") != first
    assert machine.evaluate(first, VERSION_OF.format("small-library")) == "3.0"
