"""Runs programs and reports each line they print."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

MAX_LINE_BYTES = 1 << 20  # bytes


async def run_lines(
    command: Sequence[str],
    report: Callable[[str], None],
    *,
    tail_lines: int,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> tuple[int, list[str]]:
    """Run a program; returns its exit status and the last `tail_lines` lines of both streams.

    `report` gets every line. Lines are stripped, and empty ones dropped. The program is killed if
    the caller is cancelled, and inherits our environment unless `env` is given. Raises OSError if
    it cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=env,
        pass_fds=pass_fds,
        limit=MAX_LINE_BYTES,
    )
    assert process.stdout is not None
    tail: deque[str] = deque(maxlen=tail_lines)
    try:
        async for raw in process.stdout:
            line = raw.decode("utf-8", "replace").strip()
            if line:
                tail.append(line)
                report(line)
        return await process.wait(), list(tail)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
