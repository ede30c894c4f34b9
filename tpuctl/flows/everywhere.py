"""One command on many workers at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from tpuctl.errors import TpuctlError
from tpuctl.model.events import CommandOutput, Emit, Warned
from tpuctl.remote.ssh import SshTransport

__all__ = ["Ending", "run_everywhere"]


@dataclass(frozen=True)
class Ending:
    """How a command ended on one worker."""

    worker: int
    exit_code: int


async def run_everywhere(
    line: str, transports: Mapping[int, SshTransport], emit: Emit
) -> list[Ending]:
    """Run a shell's line on all of them, emitting what it writes; the endings in their order.

    A worker that cannot be reached is told and counts with the exit code of that error, while the
    others go on. Cancelling interrupts the command everywhere.
    """
    endings: list[Ending] = []

    async def one(worker: int, transport: SshTransport) -> None:
        try:
            code = await transport.pour(
                line,
                lambda data: emit(CommandOutput(worker, data)),
                lambda data: emit(CommandOutput(worker, data, is_error=True)),
            )
        except TpuctlError as error:
            for diagnostic in error.diagnostics:
                emit(Warned(diagnostic, is_error=True))
            code = error.exit_code
        endings.append(Ending(worker, code))

    async with asyncio.TaskGroup() as group:
        for worker, transport in transports.items():
            group.create_task(one(worker, transport))
    return endings
