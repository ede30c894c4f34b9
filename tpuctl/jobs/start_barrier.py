"""How a job begins: on all its workers together, as soon as the last of them is ready.

The workers see to it by themselves, through the bucket; whoever has connections to them hastens
it, and learns when it has come to pass.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Literal

from tpuctl.errors import Unreachable
from tpuctl.jobs.launch import SIGN, are_ready, command, give_sign
from tpuctl.model.job import JobRecord, WorkerRecord
from tpuctl.polling import Backoff
from tpuctl.remote.transport import Transport

__all__ = ["begin"]

ASK_SECONDS = 20.0  # that one question waits for its answer
GIVE_UP_SECONDS = 300.0
RECONNECT = Backoff(initial=0.1, maximum=5.0, multiplier=2.0)


async def begin(
    record: JobRecord, transports: Mapping[int, Transport], *, until_running: bool = False
) -> dict[int, WorkerRecord]:
    """Let the job begin once all its workers are ready; how each that was asked fares then.

    With `until_running`, once it runs on all of them. Returns as soon as it has ended on one, and
    does not begin on the others then. Raises Unreachable when a worker could not be reached
    for some minutes: the job may begin all the same.
    """
    workers = {worker: transports[worker] for worker in record.workers}
    records: dict[int, WorkerRecord] = {}
    if len(workers) > 1 and not await _has_begun(record, workers):
        records = await _asked(record, workers, "ready")
        if not are_ready(record, records):
            return records
        await give_sign(record, workers)
    return await _asked(record, workers, "running") if until_running else records


async def _has_begun(record: JobRecord, workers: Mapping[int, Transport]) -> bool:
    """Whether the sign was given: the first worker has it before all others."""
    try:
        seen = await workers[record.workers[0]].run(["test", "-e", f"{record.folder}/{SIGN}"])
    except Unreachable:
        return False
    return seen.exit_code == 0


async def _asked(
    record: JobRecord, workers: Mapping[int, Transport], until: Literal["ready", "running"]
) -> dict[int, WorkerRecord]:
    """The records, when all workers are so far or one has ended."""
    waiting = {
        asyncio.ensure_future(_ask(record, transport, until)) for transport in workers.values()
    }
    records: dict[int, WorkerRecord] = {}
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            records |= {one.worker: one for one in (task.result() for task in done)}
            if any(one.has_failed for one in records.values()):
                break
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return records


async def _ask(record: JobRecord, transport: Transport, until: str) -> WorkerRecord:
    delays, heard = RECONNECT.delays(), time.monotonic()
    before = ("preparing",) if until == "ready" else ("preparing", "ready")
    options = ("--until", until, "--patience", str(ASK_SECONDS))
    while True:
        try:
            done = await transport.run(command(record, "start", *options))
        except Unreachable:
            if time.monotonic() - heard >= GIVE_UP_SECONDS:
                raise
            await asyncio.sleep(next(delays))
            continue
        done.check(f"worker {transport.worker}: job {record.id}")
        found = WorkerRecord.model_validate_json(done.stdout)
        if found.state not in before:
            return found
        delays, heard = RECONNECT.delays(), time.monotonic()
