"""Finds Python interpreters on this computer: the running one, those on PATH, pyenv's and uv's.

Environments for TensorFlow need a Python version that this TensorFlow has wheels for, which may
differ from the one that runs tpuctl.
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
from tpuctl.units import decimal_size

# Requirements: venv and ensurepip (missing on Debian until python3.X-venv is installed), what pip
# needs (missing where Python was compiled without the libraries), CPython with the GIL (the
# free-threaded build needs other wheels), and this machine's architecture.
_PROBE = """
import json, platform, ssl, sys, sysconfig, zlib, ensurepip, venv
free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
path = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps([path, platform.python_version(), platform.python_implementation(),
                  free_threaded, platform.machine()]))
"""
_PROBE_SECONDS = 20.0
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Interpreter:
    """An interpreter that can create virtual environments."""

    path: str
    version: str  # "3.11.7"

    @property
    def minor(self) -> str:
        """The minor version: "3.11"."""
        return ".".join(self.version.split(".")[:2])


def current() -> Interpreter:
    """The running interpreter, or the one its virtual environment was created from."""
    path = str(getattr(sys, "_base_executable", None) or sys.executable)
    return Interpreter(path, platform.python_version())


def find(minors: Sequence[str]) -> Interpreter | None:
    """An interpreter of one of these versions ("3.11"), in order of preference; the running one
    first."""
    running = current()
    if running.minor in minors:
        return running
    for minor in minors:
        seen: set[Path] = set()
        for candidate in _candidates(minor):
            if candidate.exists() and (real := candidate.resolve()) not in seen:
                seen.add(real)
                interpreter = _probe(candidate)
                if interpreter is not None and interpreter.minor == minor:
                    return interpreter
    return None


def uv() -> str | None:
    """The path of uv, which can install interpreters: the one that came with tpuctl, or else the
    one on PATH."""
    return wheel_uv() or shutil.which("uv")


def wheel_uv() -> str | None:
    """The path of the uv that came with tpuctl, as a wheel of the package index."""
    try:
        from uv import find_uv_bin

        return os.fspath(find_uv_bin())
    except (ImportError, OSError):
        return None


async def install(minor: str, report: Callable[[str], None]) -> str | None:
    """Install an interpreter with uv; returns None on success, else its last output."""
    program = uv()
    if program is None:
        return "uv is not installed"
    command = (program, "python", "install", "--color", "never", minor)
    progress = asyncio.create_task(_report_progress(report))
    try:
        status, tail = await run_lines(command, report, tail_lines=3)
    finally:
        progress.cancel()
    return None if status == 0 else " ".join(tail) or f"uv exited with code {status}"


def install_hint(minor: str) -> str:
    """Instructions to install this Python version."""
    return f"Install it with uv, pyenv or your package manager:\n    uv python install {minor}"


def or_list(minors: Sequence[str]) -> str:
    """Join with commas and "or": "3.11, 3.12 or 3.13"."""
    *others, last = minors
    return f"{', '.join(others)} or {last}" if others else last


async def _report_progress(report: Callable[[str], None]) -> None:
    """Report how much uv has unpacked (it unpacks while downloading), until cancelled."""
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        size = 0
        for path in (_uv_folder() / ".temp").rglob("*"):
            with suppress(OSError):  # moved to its final place meanwhile
                size += path.lstat().st_size
        if size:
            report(f"{decimal_size(size)} unpacked")


def _uv_folder() -> Path:
    """The folder of the interpreters that uv installed."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")


def _candidates(minor: str) -> Iterator[Path]:
    program = f"python{minor}"
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if folder:
            yield Path(folder, program)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{minor}[.-]*/bin/{program}"), reverse=True)
    yield from sorted(_uv_folder().glob(f"cpython-{minor}[.-]*/bin/{program}"), reverse=True)


def _probe(candidate: Path) -> Interpreter | None:
    """Run the candidate to identify it; None if it fails (a pyenv shim may be stale) or is
    unsuitable."""
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
