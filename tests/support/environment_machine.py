"""A machine on which the shipped program creates virtual environments of jobs."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import uv

from tests.support.machine_folder import machine_folder
from tests.support.python_mirror import RELEASE, PythonMirror
from tests.support.wheels import make_wheel

SCRIPT = machine_folder() / "environment.py"
TIMEOUT = 120.0


class Machine:
    """An image with another TensorFlow package, and a job's folder. No index is used.

    The image has pip unless `pip` is False: next to its other packages, as on Debian.
    """

    def __init__(self, home: Path, *, pip: bool = True) -> None:
        self.home = home
        self.interpreter = sys.executable  # runs the shipped program
        self.wheels = home / "wheels"
        self.wheels.mkdir()
        self.spec: dict[str, Any] = {}  # in addition to the usual fields
        self.install: dict[str, Any] = {}  # in addition to what a test installs
        self.folder = home / "job"
        (self.folder / "code").mkdir(parents=True)
        (self.folder / "log").touch()
        image = home / "image"
        venv.create(image, with_pip=False, symlinks=True)
        self.python = image / "bin/python"
        packages = next((image / "lib").iterdir()) / "site-packages"
        if pip:
            pip_spec = importlib.util.find_spec("pip")
            assert pip_spec is not None
            assert pip_spec.origin is not None
            (packages / "pip").symlink_to(Path(pip_spec.origin).parent)
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

        self.variables = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": os.devnull,
        }

    def create(
        self, requirements: str = "", *, bundle: str = "1", **install: Any
    ) -> subprocess.CompletedProcess[bytes]:
        if requirements:
            (self.folder / "code/requirements.txt").write_text(requirements)
            install["requirements"] = "requirements.txt"
        with self.begin(self.folder, bundle=bundle, **{**self.install, **install}) as process:
            out, err = process.communicate(timeout=TIMEOUT)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def begin(self, folder: Path, *, bundle: str = "1", **install: Any) -> subprocess.Popen[bytes]:
        """Start creating the environment of the job in that folder."""
        spec = {**self.spec, "bundle": {"sha256": bundle}, "install": install}
        (folder / "spec.json").write_text(json.dumps(spec))
        argv = [self.interpreter, "-S", "-I", SCRIPT, "create", folder, self.python]
        return subprocess.Popen(
            [str(part) for part in argv],
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def create_environment(self, requirements: str = "", **more: Any) -> Path:
        done = self.create(requirements, **more)
        assert done.returncode == 0, (done.stdout + done.stderr + self.log()).decode()
        return Path(json.loads((self.folder / "environment.json").read_text())["virtual_env"])

    def log(self) -> bytes:
        return (self.folder / "log").read_bytes()

    def evaluate(self, environment: Path, code: str) -> str:
        argv = [str(environment / "bin/python"), "-c", code]
        return subprocess.check_output(argv, env=self.variables).decode().strip()

    def result(self) -> dict[str, Any]:
        """The search paths and interpreter of the job."""
        result: dict[str, Any] = json.loads((self.folder / "environment.json").read_text())
        return result

    def another_folder(self, name: str) -> Path:
        """The folder of another job with the same code."""
        folder = self.home / name
        shutil.copytree(self.folder / "code", folder / "code")
        (folder / "log").touch()
        return folder

    def has_uv(self) -> None:
        """Let jobs bring uv, which is on this machine already."""
        self.install["uv"] = UV
        home = self.tool_folder(UV["key"])
        (home / "uv").symlink_to(uv_path())
        (home / "complete").touch()

    def tool_folder(self, key: str) -> Path:
        """The folder of a tool, created."""
        home = self.home / ".tpuctl/tools" / key
        home.mkdir(parents=True)
        return home


def uv_path() -> Path:
    """The uv of these tests."""
    return Path(uv.find_uv_bin())


UV = {
    "key": f"uv-{metadata.version('uv')}-{platform.machine()}",
    "version": metadata.version("uv"),
    "sha256": None,
}


def python_build(mirror: PythonMirror, version: str, **more: str | None) -> dict[str, str | None]:
    """A Python as a job's record names it; its checksum is unknown unless given."""
    request = f"cpython-{version}-linux-{platform.machine()}-gnu"
    build = {"request": request, "key": f"{request}-{RELEASE}", "version": version, "sha256": None}
    assert mirror.archive(version).exists()
    return {**build, **more}
