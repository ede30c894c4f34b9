"""Runs uv: the one that came with tpuctl, or else the one on PATH."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tpuctl import interpreters
from tpuctl.errors import TpuctlError, Usage
from tpuctl.model.jobs.installation import Tool
from tpuctl.processes import run_lines

TIMEOUT_SECONDS = 300.0
TAIL_LINES = 40  # of the output that errors are taken from
# Of the caller: what would make uv look at another project, environment or Python than the one at
# hand, or print more than it is read for. Indexes, mirrors, proxies and certificates are kept.
MISLEADING = frozenset(
    {
        *("UV_PROJECT", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "UV_WORKING_DIR"),
        *("UV_FROZEN", "UV_LOCKED", "UV_TARGET", "UV_PREFIX", "UV_SYSTEM_PYTHON"),
        *("UV_MANAGED_PYTHON", "UV_NO_MANAGED_PYTHON", "UV_PYTHON_PREFERENCE"),
        *("UV_WORKING_DIRECTORY", "UV_COMPILE_BYTECODE", "UV_SHOW_RESOLUTION"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH", "PYTHONHOME"),
        *("RUST_LOG", "RUST_BACKTRACE", "UV_LOG_CONTEXT", "FORCE_COLOR", "CLICOLOR_FORCE"),
    }
)
# Pythons are downloaded when asked for, and only then: a `never` of the user's is about this
# computer, where none is installed.
SETTINGS = {"NO_COLOR": "1", "UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "manual"}
PASSWORD = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s@`'\"]+@")
QUERY = re.compile(r"(?i)\b(https?://[^\s?`'\")]+)\?[^\s`'\")]*")


class UvFailed(TpuctlError):
    """uv ended with an error; `output` is what it printed about it, without passwords."""

    def __init__(self, command: Sequence[str], output: str) -> None:
        self.output = without_passwords(output)
        self.reason = _reason(self.output.splitlines())
        words = [word for word in command[:2] if not word.startswith("-")]
        super().__init__(f"{' '.join(['uv', *words])} failed", self.reason)


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


def find_uv() -> str | None:
    """The path of uv, if there is one."""
    return interpreters.uv()


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
    return {**inherited, **SETTINGS, **(variables or {})}


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
    except OSError as error:
        raise _not_started(error) from error
    if result.returncode != 0:
        raise UvFailed(arguments, result.stderr or result.stdout)
    return result.stdout


async def follow_uv(
    arguments: Sequence[str],
    report: Callable[[str], None],
    *,
    folder: Path,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run uv for a folder without a project; `report` gets each line that it prints. uv is killed
    if the caller is cancelled, or `report` raises. Raises what `run_uv` does."""
    command = [uv_path(), "--color", "never", *arguments, "--project", str(folder)]
    try:
        status, tail = await run_lines(
            command, report, tail_lines=TAIL_LINES, env=uv_environment(variables)
        )
    except OSError as error:
        raise _not_started(error) from error
    if status != 0:
        raise UvFailed(arguments, "\n".join(tail) or f"it exited with code {status}")


def without_passwords(text: str) -> str:
    """A text in which addresses have neither passwords nor queries, which may be signatures."""
    return QUERY.sub(r"\1", PASSWORD.sub(r"\1", text))


def _not_started(error: OSError) -> Usage:
    return Usage(
        "uv cannot be started",
        str(error),
        hint="Install it beside tpuctl again:\n    pip install --force-reinstall uv",
    )


def _reason(lines: Iterable[str]) -> str:
    """uv's explanation in one line: its errors and their causes, without what it did before."""
    parts: list[str] = []
    is_error = False
    listed = [line.strip() for line in lines if line.strip()]
    for line in listed:
        head, _, rest = line.partition(": ")
        if head in ("error", "cause", "Caused by"):
            is_error = True
            parts.append(rest)
        elif is_error:
            parts[-1] += f" {line}"
    reason = ": ".join(parts) or " ".join(listed)
    # An address once: after "Failed to download `URL`", the status is "… for url (URL)".
    return re.sub(
        r" for url \(([^)]+)\)", lambda match: match[0] * (reason.count(match[1]) == 1), reason
    )
