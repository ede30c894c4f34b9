"""A rehearsed script as a process: started as a worker starts it, and never left behind."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpuctl.assets import program

__all__ = ["Command", "Exit", "last_lines", "raised_in", "run"]

JOB_PARENT_FILES = ("job_parent.py", "processes.py", "folder.py", "clock.py")
PARENT_WATCHDOG = Path(__file__).with_name("parent_watchdog.py")
TICK = 0.25
GRACE_SECONDS = 10.0  # after SIGTERM, when the time is over
TAIL_BYTES = 1 << 16
# `2026-11-22 01:54:58.986051: I tensorflow/core/…`, `I0000 00:00:1795311975.651596 …`, and what
# goes on from the first.
TENSORFLOW_LOG_LINE = re.compile(
    r"\d{4}-\d\d-\d\d [\d:.]+: [IWE] |[IWE]\d{4} [\d:.]+ |To enable the following instructions"
    r"|WARNING: All log messages before absl"
)
FRAME = re.compile(r'  File "(?P<file>[^"]+)"')
LIBRARIES = ("site-packages", "dist-packages", "/preflight/shim/")
MAX_LINE_LENGTH = 200  # letters of a line that is shown again


@dataclass(frozen=True)
class Command:
    """What to start, where, with which variables and no others."""

    argv: Sequence[str]
    cwd: Path
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Exit:
    """How it ended; no code where a signal ended it."""

    code: int | None
    stopped: Literal["", "timeout", "interrupted"] = ""
    seconds: float = 0.0


async def run(command: Command, folder: Path, *, seconds: float, look: Callable[[], None]) -> Exit:
    """Run it to its end, or for so many seconds, its output going to `folder`/log.

    `look` is called some times a second. Cancelling ends the script and everything that it
    started before CancelledError goes on; so does the end of this program, whatever ends it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _copy_programs(folder)
    python = (sys.executable, "-S", "-I")
    job_parent = (
        *python,
        str(folder / "job_parent.py"),
        str(folder),
        str(command.cwd),
        *command.argv,
    )
    clock = asyncio.get_running_loop().time
    began = clock()
    guard = await asyncio.create_subprocess_exec(
        *(*python, str(PARENT_WATCHDOG), *job_parent),
        stdin=asyncio.subprocess.PIPE,
        env=dict(command.environment),
        start_new_session=True,
    )
    assert guard.stdin is not None
    stopped: Literal["", "timeout"] = ""
    try:
        while not await _has_ended(guard):
            look()
            left = began + seconds - clock()
            if left <= 0 and not stopped:
                stopped = "timeout"
                guard.stdin.write(b"t")
            if left <= -GRACE_SECONDS:
                guard.stdin.close()
    finally:
        guard.stdin.close()
        await _end(guard)
        code = _code(folder)
        _clean_up(folder)
    look()
    return Exit(code, stopped, clock() - began)


def last_lines(log: Path, count: int = 8) -> tuple[str, ...]:
    """The last lines of a log that say something; a progress bar's are one.

    Left out are TensorFlow's own, what stands before a traceback, and its frames in libraries.
    """
    return tuple(_without_libraries(_last_output_lines(log))[-count:])


def raised_in(log: Path) -> str:
    """The file of the innermost frame of the last traceback; empty where there is none."""
    frames = [match["file"] for line in _last_output_lines(log) if (match := FRAME.match(line))]
    return frames[-1] if frames else ""


def _last_output_lines(log: Path) -> list[str]:
    """The last lines that are the script's, those of the last traceback where there is one."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n"))
    kept_lines = [
        line[:MAX_LINE_LENGTH]
        for line in lines
        if line.strip() and not TENSORFLOW_LOG_LINE.match(line)
    ]
    begins = [number for number, line in enumerate(kept_lines) if line.startswith("Traceback (")]
    return kept_lines[begins[-1] :] if begins else kept_lines


def _without_libraries(lines: Sequence[str]) -> list[str]:
    """A traceback's lines but for those of installed packages."""
    kept_lines, is_library = [], False
    for line in lines:
        if FRAME.match(line):
            is_library = any(library in line for library in LIBRARIES)
        elif not line.startswith("    "):
            is_library = False
        if not is_library:
            kept_lines.append(line)
    return kept_lines


def _copy_programs(folder: Path) -> None:
    for name in JOB_PARENT_FILES:
        (folder / name).write_text(program(name), "utf-8")


async def _has_ended(guard: asyncio.subprocess.Process) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(guard.wait(), TICK)
        return True
    return False


async def _end(guard: asyncio.subprocess.Process) -> None:
    """Wait for the guard, which ends all; a second Ctrl-C does not cut that short."""
    waiting = asyncio.ensure_future(guard.wait())
    while not waiting.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({waiting})


def _code(folder: Path) -> int | None:
    try:
        exited = json.loads((folder / "exit.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    code = exited["exit_code"]
    if code is None:
        return 128 + int(exited["signal"])
    return int(code)


def _clean_up(folder: Path) -> None:
    """Leave what is of use afterwards: the log, and what was observed."""
    for name in (*JOB_PARENT_FILES, "started.json", "exit.json", "job.lock"):
        with suppress(FileNotFoundError):
            (folder / name).unlink()
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
