"""Programs that are run to their end, each line they print passed on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

__all__ = ["run_lines"]

LONGEST_LINE = 1 << 20  # bytes


async def run_lines(
    command: Sequence[str],
    report: Callable[[str], None],
    *,
    last: int,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> tuple[int, list[str]]:
    """The exit status, and the `last` so many lines of both streams; `report` gets every line.

    Lines are stripped, and empty ones left out. The program is killed when the caller is
    cancelled. Without `env` it has our own environment. Errors: OSError, as when it is not there.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=env,
        pass_fds=pass_fds,
        limit=LONGEST_LINE,
    )
    assert process.stdout is not None
    tail: deque[str] = deque(maxlen=last)
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
