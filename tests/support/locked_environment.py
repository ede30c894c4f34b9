"""Cached environments of other programs' packages, created from hash-pinned lists."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.prerequisites import skip_or_fail
from tpuctl.assets import runtime_lock, templates
from tpuctl.interpreters import Interpreter, current, find, or_list
from tpuctl.local_cloud.machine_images import ImageStore

REQUIREMENTS = "requirements.txt"  # the lock of a template
PYTHONS = ("3.11", "3.12")  # all other lists have wheels for these
# PyTorch and PyTorch/XLA, as templates lock them for the Python that they bring.
TEMPLATE_PYTHONS = ("3.12",)
TORCH_LOCK = templates() / "jobs" / "torch" / "requirements.txt"
# Those that tpuctl supports, other than the one that runs the tests.
OTHER_PYTHONS = [each for each in ("3.11", "3.12", "3.13", "3.14") if each != current().minor]


def locked_python(lock: Path, pythons: Sequence[str] = ()) -> Path:
    """Return the interpreter of the environment that `lock` lists; created if missing.

    `pythons` are the versions that it may have, in order of preference; by default those for which
    the lock was made. Only the listed packages
    are installed, without further dependencies. Raises RuntimeError with pip's last lines on
    failure.
    """
    pythons = pythons or (TEMPLATE_PYTHONS if lock.name == REQUIREMENTS else PYTHONS)
    interpreter = find(pythons)
    if interpreter is None:
        skip_or_fail(f"an environment for {_name(lock)} needs Python {or_list(pythons)}")

    def install(home: Path) -> None:
        _run(interpreter.path, "-m", "venv", str(home))
        _run(
            *(str(home / "bin" / "python"), "-m", "pip", "install", "--no-deps"),
            # Python compiles the few files that are imported.
            *("--require-hashes", "--no-compile", "--no-input", "--progress-bar=off", "--no-color"),
            *("--disable-pip-version-check", "--requirement", str(lock)),
            PIP_CACHE_DIR=str(ImageStore().downloads),
        )

    name = _name(lock)
    return _environment(name, _home(lock, interpreter), install) / "bin" / "python"


def own_environment(minor: str) -> Path:
    """The interpreter of an environment of this Python with what tpuctl depends on; skips the test
    where that Python is not installed."""
    if find([minor]) is None:
        pytest.skip(f"Python {minor} is not installed")
    return locked_python(runtime_lock(), [minor])


def locked_node_modules(folder: Path) -> Path:
    """Return the `node_modules` of the folder's package-lock.json; created if missing.

    Install scripts of packages are disabled. Raises RuntimeError with npm's last lines on failure.
    """

    def install(home: Path) -> None:
        home.mkdir()
        for name in ("package.json", "package-lock.json", ".npmrc"):
            shutil.copy(folder / name, home)
        _run("npm", "ci", "--ignore-scripts", "--prefix", str(home))

    lock = (folder / "package-lock.json").read_text("utf-8")
    return _environment(folder.name, _folder(folder.name, lock), install) / "node_modules"


def _environment(name: str, home: Path, install: Callable[[Path], None]) -> Path:
    """Return `home`, filled by `install` if it is incomplete."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(home.with_suffix(".lock")):
        if not (home / "complete").exists():
            shutil.rmtree(home, ignore_errors=True)
            print(f"creating an environment for {name}, which takes minutes once", file=sys.stderr)
            install(home)
            (home / "complete").touch()
    return home


def _name(lock: Path) -> str:
    """A lock's name, or its folder's if all jobs give it the same."""
    return lock.parent.name if lock.name == REQUIREMENTS else lock.stem


def _home(lock: Path, interpreter: Interpreter) -> Path:
    version = f"{interpreter.version} {platform.machine()}"
    return _folder(_name(lock), f"{version}\n{lock.read_text('utf-8')}")


def _folder(name: str, identity: str) -> Path:
    """The cache folder for this identity."""
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return ImageStore().cache / "environments" / f"{name}-{digest}"


def _run(*command: str, **environment: str) -> None:
    result = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        tail = "\n".join(result.stdout.splitlines()[-8:])
        raise RuntimeError(f"`{' '.join(command[1:4])} …` ended with {result.returncode}:\n{tail}")
