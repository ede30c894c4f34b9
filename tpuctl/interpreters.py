"""Python interpreters of this computer: the running one, those on PATH, pyenv's and uv's own.

What tpuctl makes for TensorFlow needs a Python that this TensorFlow has wheels for, which need not
be the one that tpuctl runs on.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tpuctl.processes import run_lines

__all__ = ["Interpreter", "find", "install", "install_hint", "or_list", "own", "uv"]

# What makes an interpreter fit: venv and ensurepip (Debian's lacks both until python3.X-venv is
# installed), CPython with a lock of its own (wheels of the free-threaded build differ), the
# processor that the other packages are chosen for.
_PROBE = """
import json, platform, sys, sysconfig, ensurepip, venv
free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
path = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps([path, platform.python_version(), platform.python_implementation(),
                  free_threaded, platform.machine()]))
"""
_PROBE_SECONDS = 20.0
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Interpreter:
    """One that virtual environments can be made with."""

    path: str
    version: str  # "3.11.7"

    @property
    def minor(self) -> str:
        """As in "3.11"."""
        return ".".join(self.version.split(".")[:2])


def own() -> Interpreter:
    """The interpreter that runs this, or that its virtual environment was made from."""
    path = str(getattr(sys, "_base_executable", None) or sys.executable)
    return Interpreter(path, platform.python_version())


def find(minors: Sequence[str]) -> Interpreter | None:
    """An interpreter of one of these versions ("3.11"), earlier ones preferred; our own first."""
    running = own()
    if running.minor in minors:
        return running
    for minor in minors:
        seen: set[Path] = set()
        for candidate in _candidates(minor):
            if candidate.exists() and (real := candidate.resolve()) not in seen:
                seen.add(real)
                interpreter = _probed(candidate)
                if interpreter is not None and interpreter.minor == minor:
                    return interpreter
    return None


def uv() -> str | None:
    """The program uv, which can install an interpreter."""
    return shutil.which("uv")


async def install(minor: str, report: Callable[[str], None]) -> str | None:
    """Have uv download and install an interpreter; None when done, else its last words."""
    program = uv()
    if program is None:
        return "uv is not installed"
    command = (program, "python", "install", "--color", "never", minor)
    watching = asyncio.create_task(_watch(report))
    try:
        status, tail = await run_lines(command, report, last=3)
    finally:
        watching.cancel()
    return None if status == 0 else " ".join(tail) or f"uv ended with {status}"


def install_hint(minor: str) -> str:
    """How to install such an interpreter."""
    return f"Install one, with uv, pyenv or your system's packages:\n    uv python install {minor}"


def or_list(minors: Sequence[str]) -> str:
    """As in "3.11, 3.12 or 3.13"."""
    *others, last = minors
    return f"{', '.join(others)} or {last}" if others else last


async def _watch(report: Callable[[str], None]) -> None:
    """Report how much uv has unpacked, which it does while it downloads, until cancelled."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        size = 0
        for path in (_managed() / ".temp").rglob("*"):
            with suppress(OSError):  # moved to its place meanwhile
                size += path.lstat().st_size
        if size:
            report(f"{size / 1e6:,.0f} MB unpacked")


def _managed() -> Path:
    """Where uv keeps the interpreters that it has installed."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")


def _candidates(minor: str) -> Iterator[Path]:
    program = f"python{minor}"
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if folder:
            yield Path(folder, program)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{minor}[.-]*/bin/{program}"), reverse=True)
    yield from sorted(_managed().glob(f"cpython-{minor}[.-]*/bin/{program}"), reverse=True)


def _probed(candidate: Path) -> Interpreter | None:
    """What it is, if it runs and fits: a shim of pyenv's may lead nowhere."""
    try:
        answer = subprocess.run(
            [str(candidate), "-I", "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_PROBE_SECONDS,
        )
        path, version, implementation, is_free_threaded, machine = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    fits = implementation == "CPython" and not is_free_threaded and machine == platform.machine()
    return Interpreter(str(path), str(version)) if fits else None
