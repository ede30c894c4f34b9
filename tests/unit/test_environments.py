"""The lock of shared virtual environments."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from tpuctl.environments import exclusive


async def test_child_process_keeps_lock(tmp_path: Path) -> None:
    """The next process waits for an orphaned pip, and reports that once."""
    path, reports = tmp_path / "lock", list[str]()
    waiting = asyncio.Event()

    def report(text: str) -> None:
        reports.append(text)
        waiting.set()

    async def hold() -> None:
        async with exclusive(path, report, waiting="waiting"):
            pass

    async with exclusive(path, report, waiting="waiting") as lock:
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock]
        )
    with child:
        task = asyncio.create_task(hold())
        await waiting.wait()
        await asyncio.sleep(0.5)  # longer than the interval between attempts
        assert not task.done()
        child.kill()
    await asyncio.wait_for(task, 60)
    assert reports == ["waiting"]
