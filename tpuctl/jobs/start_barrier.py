"""Starts a job on all its workers at the same time, once the last of them is ready.

The workers also do so by themselves, through the bucket; with connections to them it is faster,
and the caller learns when the job has started.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Literal

from tpuctl.errors import Unreachable
from tpuctl.jobs.launch import START_SIGNAL, are_ready, send_start_signal, supervisor_command
from tpuctl.model.jobs.job import JobRecord, WorkerRecord
from tpuctl.model.text.record_parsing import parse_record
from tpuctl.polling import Backoff
from tpuctl.remote.transport import Transport

QUERY_SECONDS = 20.0  # how long one query waits
GIVE_UP_SECONDS = 300.0
RECONNECT = Backoff(initial=0.1, maximum=5.0, multiplier=2.0)


async def begin(
    record: JobRecord, transports: Mapping[int, Transport], *, until_running: bool = False
) -> dict[int, WorkerRecord]:
    """Start the job once all its workers are ready; return the records of those queried.

    With `until_running`, wait until it runs on all of them. Returns as soon as it has ended on one
    worker, without starting it on the others. Raises Unreachable if a worker could not be reached
    for some minutes: the job may start nevertheless.
    """
    workers = {worker: transports[worker] for worker in record.workers}
    records: dict[int, WorkerRecord] = {}
    if len(workers) > 1 and not await _has_begun(record, workers):
        records = await _wait_for_state(record, workers, "ready")
        if not are_ready(record, records):
            return records
        await send_start_signal(record, workers)
    return await _wait_for_state(record, workers, "running") if until_running else records


async def _has_begun(record: JobRecord, workers: Mapping[int, Transport]) -> bool:
    """Whether the start signal was sent: the first worker gets it before all others."""
    try:
        result = await workers[record.workers[0]].run(
            ["test", "-e", f"{record.folder}/{START_SIGNAL}"]
        )
    except Unreachable:
        return False
    return result.exit_code == 0


async def _wait_for_state(
    record: JobRecord, workers: Mapping[int, Transport], until: Literal["ready", "running"]
) -> dict[int, WorkerRecord]:
    """The records, once all workers have reached a state or one has failed."""
    tasks = {
        asyncio.ensure_future(_query(record, transport, until)) for transport in workers.values()
    }
    records: dict[int, WorkerRecord] = {}
    try:
        while tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            records |= {record.worker: record for record in (task.result() for task in done)}
            if any(record.has_failed for record in records.values()):
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return records


async def _query(record: JobRecord, transport: Transport, until: str) -> WorkerRecord:
    delays, last_seen = RECONNECT.delays(), time.monotonic()
    earlier_states = ("preparing",) if until == "ready" else ("preparing", "ready")
    options = ("--until", until, "--timeout", str(QUERY_SECONDS))
    while True:
        try:
            result = await transport.run(supervisor_command(record, "start", *options))
        except Unreachable:
            if time.monotonic() - last_seen >= GIVE_UP_SECONDS:
                raise
            await asyncio.sleep(next(delays))
            continue
        result.check(f"worker {transport.name}: job {record.id}")
        worker_record = parse_record(WorkerRecord, result.stdout, f"worker {transport.name}")
        if worker_record.state not in earlier_states:
            return worker_record
        delays, last_seen = RECONNECT.delays(), time.monotonic()
