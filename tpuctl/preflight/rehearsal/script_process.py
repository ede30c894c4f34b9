"""Runs a rehearsed script as a process, started as on a worker and always stopped with tpuctl."""

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

JOB_PARENT_FILES = ("job_parent.py", "processes.py", "folder.py", "clock.py")
PARENT_WATCHDOG = Path(__file__).with_name("parent_watchdog.py")
TICK = 0.25
GRACE_SECONDS = 10.0  # after SIGTERM at the timeout
TAIL_BYTES = 1 << 16
MAX_RESTORED_BYTES = 1 << 28
# `2026-11-22 01:54:58.986051: I tensorflow/core/…`, `I0000 00:00:1795311975.651596 …`, and
# continuation lines of the first.
TENSORFLOW_LOG_LINE = re.compile(
    r"\d{4}-\d\d-\d\d [\d:.]+: [IWE] |[IWE]\d{4} [\d:.]+ |To enable the following instructions"
    r"|WARNING: All log messages before absl"
)
# Of a traceback, or of those that TensorFlow puts into messages, which are indented further.
FRAME = re.compile(r'(?P<indent>  |    )File "')
LIBRARIES = ("site-packages", "dist-packages", "/preflight/shim/", "/simulated_tpu/")
MAX_LINE_LENGTH = 200  # longer lines are truncated


@dataclass(frozen=True)
class Command:
    """A command, its folder and its complete environment.

    `source` is the folder of the user that `cwd` is a copy of, and replaces it in what is shown.
    """

    argv: Sequence[str]
    cwd: Path
    environment: Mapping[str, str]
    source: Path | None = None

    def restore(self, text: str) -> str:
        """A text with the paths of the user's folder."""
        return text if self.source is None else text.replace(str(self.cwd), str(self.source))

    def restore_json(self, text: str) -> str:
        """The same for JSON."""
        for copy in {str(self.cwd), json.dumps(str(self.cwd))[1:-1]} if self.source else ():
            text = text.replace(copy, json.dumps(str(self.source))[1:-1])
        return text

    def restore_file(self, file: Path, *, is_json: bool = False) -> None:
        """The same for a file, unless it is huge."""
        with suppress(OSError):
            if self.source is not None and file.stat().st_size <= MAX_RESTORED_BYTES:
                text = file.read_bytes().decode("utf-8", "surrogateescape")
                restored = self.restore_json(text) if is_json else self.restore(text)
                if restored != text:
                    file.write_bytes(restored.encode("utf-8", "surrogateescape"))


@dataclass(frozen=True)
class Exit:
    """How the script exited: 128 plus the signal's number if it was killed, None if unknown."""

    code: int | None
    stopped: Literal["", "timeout", "interrupted"] = ""
    seconds: float = 0.0


async def run(command: Command, folder: Path, *, seconds: float, poll: Callable[[], None]) -> Exit:
    """Run a command until it exits or times out, with its output in `folder`/log.

    `poll` is called a few times per second. If the task is canceled or this process dies, the
    script and all its child processes are killed; CancelledError is raised after that.
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
    started = clock()
    watchdog = await asyncio.create_subprocess_exec(
        *(*python, str(PARENT_WATCHDOG), *job_parent),
        stdin=asyncio.subprocess.PIPE,
        env=dict(command.environment),
        start_new_session=True,
    )
    assert watchdog.stdin is not None
    stopped: Literal["", "timeout"] = ""
    try:
        while not await _has_ended(watchdog):
            poll()
            remaining = started + seconds - clock()
            if remaining <= 0 and not stopped:
                stopped = "timeout"
                watchdog.stdin.write(b"t")
            if remaining <= -GRACE_SECONDS:
                watchdog.stdin.close()
    finally:
        watchdog.stdin.close()
        await _wait_for_watchdog(watchdog)
        code = _exit_code(folder)
        _clean_up(folder)
        command.restore_file(folder / "log")
    poll()
    return Exit(code, stopped, clock() - started)


def last_lines(log: Path, count: int = 8) -> tuple[str, ...]:
    """The last lines of a log without blank ones; a progress bar counts as one line.

    Excludes TensorFlow's log messages, lines before a traceback, and its frames in libraries.
    """
    return tuple(_without_libraries(_last_output_lines(log))[-count:])


def _last_output_lines(log: Path) -> list[str]:
    """The script's last lines, starting at the last traceback if there is one."""
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
    starts = [number for number, line in enumerate(kept_lines) if line.startswith("Traceback (")]
    return kept_lines[starts[-1] :] if starts else kept_lines


def _without_libraries(lines: Sequence[str]) -> list[str]:
    """A traceback's lines without those of installed packages."""
    kept_lines, is_library, indent = [], False, ""
    for line in lines:
        if frame := FRAME.match(line):
            is_library = any(library in line for library in LIBRARIES)
            indent = frame["indent"] + "  "
        elif not line.startswith(indent):
            is_library = False
        if not is_library:
            kept_lines.append(line)
    return kept_lines


def _copy_programs(folder: Path) -> None:
    for name in JOB_PARENT_FILES:
        (folder / name).write_text(program(name), "utf-8")


async def _has_ended(watchdog: asyncio.subprocess.Process) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(watchdog.wait(), TICK)
        return True
    return False


async def _wait_for_watchdog(watchdog: asyncio.subprocess.Process) -> None:
    """Wait for the watchdog, which kills everything; a second Ctrl-C does not abort that."""
    waiting = asyncio.ensure_future(watchdog.wait())
    while not waiting.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({waiting})


def _exit_code(folder: Path) -> int | None:
    try:
        exit_record = json.loads((folder / "exit.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    code = exit_record["exit_code"]
    if code is None:
        return 128 + int(exit_record["signal"])
    return int(code)


def _clean_up(folder: Path) -> None:
    """Delete everything but the log and the observations."""
    for name in (*JOB_PARENT_FILES, "started.json", "exit.json", "job.lock"):
        with suppress(FileNotFoundError):
            (folder / name).unlink()
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
