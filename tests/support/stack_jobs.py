"""Calls that a stack's own client makes, and its jobs: scripts, logs, and commands."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tpuctl.api import Tpuctl
from tpuctl.model.events import Event, LogChunk


async def request(stack: Tpuctl, client: str, method: str, *arguments: Any, **fields: Any) -> Any:
    """Call a method of an official client of the stack's cloud."""
    return await stack.cloud.call(
        method, getattr(stack.cloud.client(client), method), *arguments, **fields
    )


def write_script(stack: Tpuctl, text: str) -> Path:
    """Write `job/job.py` beside the stack file."""
    path = stack.stack_file.parent / "job" / "job.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def displayed_log(events: Iterable[Event], worker: int | None = None) -> str:
    """The displayed log, of all workers or of one."""
    chunks = (event for event in events if isinstance(event, LogChunk))
    return b"".join(chunk.data for chunk in chunks if worker in (None, chunk.worker)).decode()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """The output of a process up to this text. What follows is left to `communicate`, which does
    not see what a buffer has."""
    assert process.stdout is not None
    output = bytearray()
    while not output.endswith(text.encode()):
        character = os.read(process.stdout.fileno(), 1)
        assert character, f"ended without {text!r}: {process.stderr and process.stderr.read()}"
        output += character
    return output.decode()
