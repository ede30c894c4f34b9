"""Runs a script in several processes together, as the workers of a slice run it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpuctl.preflight.rehearsal.observations import Ended, Waiting, read
from tpuctl.preflight.rehearsal.script_process import Command, Exit, run

TICK_SECONDS = 1.0
# For the others to report that they miss a process that failed.
AFTER_FAILURE_SECONDS = 10.0


@dataclass(frozen=True)
class SliceProcess:
    """One of the processes: its command, the folder of its log, and its observations."""

    command: Command
    folder: Path
    observations: Path

    @property
    def is_waiting(self) -> bool:
        """Whether nothing has happened since it began to wait, idly."""
        observed = read(self.observations)
        return bool(observed) and isinstance(observed[-1], Waiting)

    @property
    def has_failed(self) -> bool:
        """Whether an exception has ended the script, although the process may still wait."""
        ends = (each for each in read(self.observations) if isinstance(each, Ended))
        return any(end.reason == "failed" for end in ends)


async def run_together(
    processes: Sequence[SliceProcess], *, seconds: float, poll: Callable[[], None]
) -> list[Exit]:
    """Run the processes until all have exited, or the others wait without end, for one another or
    for one that has exited: those are killed, and count as timed out."""
    runs = [
        asyncio.ensure_future(run(process.command, process.folder, seconds=seconds, poll=poll))
        for process in processes
    ]
    clock = asyncio.get_running_loop().time
    failed_at: float | None = None
    try:
        while pending := [task for task in runs if not task.done()]:
            await asyncio.wait(pending, timeout=TICK_SECONDS)
            remaining = [
                process for process, task in zip(processes, runs, strict=True) if not task.done()
            ]
            has_failed = any(task.done() and task.result().code for task in runs)
            if failed_at is None and (has_failed or any(each.has_failed for each in remaining)):
                failed_at = clock()
            if failed_at is not None and clock() - failed_at > AFTER_FAILURE_SECONDS:
                break
            if remaining and all(process.is_waiting for process in remaining):
                break
    finally:
        for task in runs:
            task.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
    return [
        task.result()
        if not task.cancelled()
        else Exit(1)
        if process.has_failed
        else Exit(None, "timeout")
        for process, task in zip(processes, runs, strict=True)
    ]
