"""Installing tpuctl on machines without it, with real pip and without an index."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tpuctl
from tests.support.subprocesses import run_captured
from tpuctl import assets
from tpuctl.jobs.wheel import Wheel, controller_wheel, wheel_of
from tpuctl.local_cloud.certificate_authority import authority_files

PROGRAMS = ("installer.py", "network_variables.py")
MAIN = """
import importlib.metadata, needed
def main():
    print("tpuctl", importlib.metadata.version("tpuctl"), needed.__name__)
"""
# Real sudo drops the caller's variables, too.
SUDO = """#!/bin/sh
shift
exec /usr/bin/env -i PATH="$PATH" "$@"
"""
APT = """#!{}
import json, os, sys
(option,) = [word for word in sys.argv if word.startswith("Acquire::https::CAInfo=")]
file = option.partition("=")[2]
call = {{
    "argv": sys.argv,
    "environment": dict(os.environ),
    "certificates": open(file).read(),
    "mode": os.stat(file).st_mode & 0o777,
}}
print(json.dumps(call), file=open("{}/calls", "a"))
sys.exit(100)
"""


class Machine:
    """A home folder, and wheels instead of an index."""

    def __init__(self, folder: Path) -> None:
        self.home, self.wheels, self.bin = folder / "home", folder / "wheels", folder / "bin"
        self.program = folder / "installer.py"
        for each in (self.home, self.wheels, self.bin):
            each.mkdir()
        for name in PROGRAMS:
            shutil.copy2(assets.shipped_programs()[name], folder)
        (folder / "network.json").write_text("{}")
        base = Path(os.path.realpath(sys.executable)).parent
        self.path = f"{self.bin}:{base}:/usr/bin:/bin"

    def run(self, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
        environment = {
            "HOME": str(self.home),
            "PATH": path or self.path,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
        }
        return run_captured(
            [sys.executable, "-S", "-I", str(self.program), *arguments],
            env=environment,
            timeout=200,
        )

    def find(self, wheel: Wheel) -> str | None:
        done = self.run("find", wheel.version, wheel.digest)
        assert done.returncode == 0, done.stderr
        found: str | None = json.loads(done.stdout)["program"]
        return found

    def put(self, wheel: Wheel) -> None:
        folder = self.home / ".tpuctl" / "programs" / wheel.digest
        folder.mkdir(parents=True)
        (folder / wheel.name).write_bytes(wheel.build())


def wheel(folder: Path, lock: str) -> Wheel:
    """A small package named tpuctl, with its own lock file."""
    package = folder / "tpuctl"
    package.mkdir()
    (package / "__main__.py").write_text(MAIN, "utf-8")
    (package / "__init__.py").touch()
    result = wheel_of(package, "9.8")
    return Wheel(
        result.package, result.version, {**result.files, "tpuctl/runtime.lock": lock.encode()}
    )


def lock_line(machine: Machine) -> str:
    """The line of a lock file for a package among the wheels."""
    dependency = Wheel(
        "needed", "1.5", {"needed/__init__.py": b"", "needed/__main__.py": b"main = 0\n"}
    )
    content = dependency.build()
    (machine.wheels / dependency.name).write_bytes(content)
    return f"needed==1.5 --hash=sha256:{hashlib.sha256(content).hexdigest()}\n"


@pytest.mark.soak
def test_wheel_is_installed_once_with_dependencies(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    result = wheel(tmp_path, lock_line(machine))
    assert machine.find(result) is None
    machine.put(result)
    used, unused = (machine.home / ".tpuctl" / "programs" / name for name in ("aa11", "bb22"))
    command_file = machine.home / ".tpuctl" / "recover" / "job" / "command.json"
    for folder in (used, unused, command_file.parent):
        folder.mkdir(parents=True)
    command_file.write_text(json.dumps({"argv": [f"{used}/environment/bin/tpuctl"]}), "utf-8")
    done = machine.run("install", result.version, result.digest)
    assert done.returncode == 0, done.stderr
    assert (used.exists(), unused.exists()) == (True, False)
    program = json.loads(done.stdout)["program"]
    version_output = run_captured([program], env={})
    assert version_output.returncode == 0, version_output.stderr
    assert version_output.stdout == "tpuctl 9.8 needed\n"
    assert machine.find(result) == program
    (machine.home / ".tpuctl" / "programs" / result.digest / result.name).unlink()
    again = machine.run("install", result.version, result.digest)
    assert json.loads(again.stdout)["program"] == program, "an existing installation is reused"


@pytest.mark.soak  # another environment, of some seconds
def test_dependency_with_other_hash_is_not_installed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    line = lock_line(machine)
    result = wheel(tmp_path, line.replace(line[-9:-1], "00000000"))
    machine.put(result)
    done = machine.run("install", result.version, result.digest)
    assert done.returncode == 1
    assert "hash" in done.stderr.lower()
    assert machine.find(result) is None


@pytest.mark.parametrize(("output", "is_used"), [("tpuctl 9.8", True), ("tpuctl 9.7", False)])
def test_image_program_is_used_if_version_matches(
    tmp_path: Path, output: str, is_used: bool
) -> None:
    machine = Machine(tmp_path)
    installed_program = machine.bin / "tpuctl"
    installed_program.write_text(f"#!/bin/sh\necho {output}\n", "utf-8")
    installed_program.chmod(0o755)
    assert machine.find(wheel(tmp_path, "")) == (str(installed_program) if is_used else None)


def test_missing_recent_python_is_reported(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    result = wheel(tmp_path, "")
    machine.put(result)
    done = machine.run("install", result.version, result.digest, path=str(machine.bin))
    assert done.returncode == 4
    assert "no Python from python3.11 or later is installed" in done.stderr


def test_apt_uses_the_company_network(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    pem = authority_files(tmp_path / "company").certificate.read_text()
    proxy = "http://proxy.example.com:3128"
    network = {"proxy": proxy, "no_proxy": [".corp.example.com"], "ca": pem}
    (tmp_path / "network.json").write_text(json.dumps(network))
    for name, text in (("sudo", SUDO), ("apt-get", APT.format(sys.executable, tmp_path))):
        (machine.bin / name).write_text(text, "utf-8")
        (machine.bin / name).chmod(0o755)
    result = wheel(tmp_path, "")
    machine.put(result)
    done = machine.run("install", result.version, result.digest, path=str(machine.bin))
    assert done.returncode == 4, done.stderr
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert ["update" in call["argv"] for call in calls] == [True, False, False, False, False]
    for call in calls:
        environment = call["environment"]
        assert environment["https_proxy"] == environment["http_proxy"] == proxy
        assert environment["no_proxy"] == ".corp.example.com"
        assert call["certificates"].endswith(pem)
        assert call["mode"] == 0o644, "for the user _apt"


def test_built_wheel_has_files_of_this_tpuctl(tmp_path: Path) -> None:
    package_wheel = controller_wheel()
    package = Path(tpuctl.__file__).parent
    for name in (
        "__main__.py",
        "cli/app.py",
        "jobs/shipped/supervision/supervisor.py",
        "catalog/compute.toml",
    ):
        assert package_wheel.files[f"tpuctl/{name}"] == (package / name).read_bytes()
    assert package_wheel.files["tpuctl/runtime.lock"] == assets.runtime_lock().read_bytes()
    assert not [name for name in package_wheel.files if "__pycache__" in name]
    (tmp_path / package_wheel.name).write_bytes(package_wheel.build())
    with zipfile.ZipFile(tmp_path / package_wheel.name) as archive:
        assert archive.testzip() is None
        assert {*package_wheel.files} < {*archive.namelist()}


def test_wheel_of_controller_lacks_only_what_recovery_never_imports(tmp_path: Path) -> None:
    """Its files alone are enough for `tpuctl wait`, of which the flow tests run the rest."""
    with zipfile.ZipFile(io.BytesIO(controller_wheel().build())) as archive:
        archive.extractall(tmp_path)
    folders = {path.name for path in (tmp_path / "tpuctl").iterdir()}
    assert not folders & {"emulator", "local_cloud", "preflight", "templates"}
    program = (
        "import importlib, os, pkgutil, tpuctl.flows, tpuctl.resources, tpuctl.jobs\n"
        "assert tpuctl.__file__.startswith(os.getcwd()), tpuctl.__file__\n"
        "for package in (tpuctl.resources, tpuctl.jobs):\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if '.shipped.' not in module.name:\n"
        "            importlib.import_module(module.name)\n"
        "from tpuctl.flows.jobs import attempts, follow, recover\n"
        "from tpuctl.cli.main import run\n"
        "raise SystemExit(run(['wait', '20261001-000000-none']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TPUCTL_CONFIG_HOME": str(tmp_path)}
    done = run_captured([sys.executable, "-c", program], cwd=tmp_path, env=environment)
    assert (done.returncode, "tpuctl.yaml" in done.stderr) == (2, True), done.stderr


def test_wheel_digest_depends_on_every_byte() -> None:
    original = Wheel("tpuctl", "1", {"tpuctl/a.py": b"1", "tpuctl/b.py": b"2"})
    assert original.digest == Wheel("tpuctl", "1", dict(reversed(original.files.items()))).digest
    assert original.build() == Wheel("tpuctl", "1", dict(original.files)).build()
    for other in (
        Wheel("tpuctl", "1", {**original.files, "tpuctl/b.py": b"3"}),
        Wheel("tpuctl", "2", original.files),
        Wheel("tpuctl", "1", {"tpuctl/a.py": b"1"}),
    ):
        assert other.digest != original.digest
