"""Runs uv: the one that came with tpuctl, or else the one on PATH."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpuctl.errors import TpuctlError, Usage
from tpuctl.model.jobs.installation import Tool

TIMEOUT_SECONDS = 300.0
# Of the caller, which would make uv look at another project or environment than the one at hand.
MISLEADING = frozenset(
    {
        *("UV_PROJECT", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "UV_WORKING_DIRECTORY"),
        *("UV_FROZEN", "UV_LOCKED", "UV_TARGET", "UV_PREFIX", "UV_SYSTEM_PYTHON"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME"),
    }
)


class UvFailed(TpuctlError):
    """uv ended with an error; `output` is what it printed about it."""

    def __init__(self, command: Sequence[str], output: str) -> None:
        super().__init__(f"uv {command[0]} failed", output.strip())
        self.output = output


def uv_path() -> str:
    """The path of uv. Raises Usage if there is none."""
    program = find_uv()
    if program is None:
        raise Usage(
            "uv not found",
            "this installation of tpuctl lacks uv, which it depends on",
            hint="Install it beside tpuctl:\n    pip install uv",
        )
    return program


@functools.cache
def find_uv() -> str | None:
    """The path of uv, if there is one."""
    try:
        from uv import find_uv_bin

        return os.fspath(find_uv_bin())
    except (ImportError, OSError):
        return shutil.which("uv")


@functools.cache
def uv_version() -> str:
    """The version of uv, as in "0.9.2". Raises what `run_uv` does."""
    return run_uv(["--version"]).split()[1]


def tool_for_uv(architecture: str) -> Tool:
    """The same uv for machines of an architecture, not stored yet."""
    return Tool(key=f"uv-{uv_version()}-{architecture}", version=uv_version())


def uv_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment for uv, with further variables."""
    inherited = {name: value for name, value in os.environ.items() if name not in MISLEADING}
    return {**inherited, "NO_COLOR": "1", "UV_NO_PROGRESS": "1", **(variables or {})}


def run_uv(
    arguments: Sequence[str],
    *,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    stdin: str = "",
) -> str:
    """Run uv and return its standard output. Raises UvFailed, and Usage if there is no uv."""
    try:
        result = subprocess.run(
            [uv_path(), "--color", "never", *arguments],
            check=False,
            cwd=cwd,
            env=uv_environment(variables),
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise UvFailed(arguments, f"it timed out after {TIMEOUT_SECONDS:.0f} s") from None
    if result.returncode != 0:
        raise UvFailed(arguments, result.stderr or result.stdout)
    return result.stdout
