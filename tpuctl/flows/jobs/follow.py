"""Follow an attempt of a job, and stop jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace

from tpuctl.cloud.caller_identity import acting_user
from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import Diagnostic
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.attempts import (
    at_latest_attempt,
    read_attempts,
    request_stop,
    with_start,
)
from tpuctl.flows.jobs.jobs import mark_stopped, require_own
from tpuctl.flows.jobs.submission import stack_of
from tpuctl.flows.machines.workers import connections
from tpuctl.jobs import launch
from tpuctl.jobs.logs import GIVE_UP_SECONDS, WorkerLog, worker_records
from tpuctl.jobs.start_barrier import begin
from tpuctl.model.events import Emit, JobEnded, LogChunk, Note, WarningIssued
from tpuctl.model.jobs.job import (
    ENDED,
    JobRecord,
    JobStatus,
    WorkerRecord,
    job_status,
)
from tpuctl.remote.transport import Transport

NOT_SHOWN = 1 << 62  # an offset past any log: waits for the end without reading the log
READERS = 16
JOB_CAUSES = (
    "script",
    "signal",
    "command",
)  # causes in a worker's record for which its exit code is the job's own


@dataclass(frozen=True)
class AttemptResult:
    """The result of one attempt."""

    record: JobRecord
    status: JobStatus
    workers: Mapping[int, WorkerRecord]
    offsets: Mapping[int, int]  # end of the emitted log, by worker

    @property
    def exit_code(self) -> int:
        assert self.status.exit_code is not None
        return self.status.exit_code


async def follow_attempt(
    record: JobRecord,
    store: ObjectStore | None,
    transports: Mapping[int, Transport],
    emit: Emit,
    *,
    from_offsets: Mapping[int, int] | None = None,
    shown_workers: Collection[int] | None = None,
    is_gone: Callable[[], Awaitable[bool]] | None = None,
    timeout: float = GIVE_UP_SECONDS,
) -> AttemptResult:
    """Emit the logs of `shown_workers` (default: the first) until the attempt ends.

    Each byte is emitted once, in order per worker, starting at `from_offsets`. A worker without a
    transport, or unreachable for `timeout` seconds, is followed through the bucket. When one
    worker fails the others are stopped. Returns the result without emitting it. Cancelling does
    not stop the job.
    """
    offsets = dict(from_offsets or {})
    shown_workers = record.workers[:1] if shown_workers is None else shown_workers
    records: dict[int, WorkerRecord] = {}

    async def follow_worker(worker: int) -> WorkerRecord:
        log = WorkerLog(
            record,
            worker,
            transport=transports.get(worker),
            store=store,
            offset=offsets.get(worker, 0) if worker in shown_workers else NOT_SHOWN,
            is_gone=is_gone,
            give_up_seconds=timeout,
            report=lambda text: emit(Note(text)),
        )
        async for chunk in log.chunks():
            offsets[worker] = log.offset
            emit(
                LogChunk(
                    worker,
                    chunk,
                    log.offset - len(chunk),
                    record.attempt,
                    record.numbering.slice_of(worker),
                )
            )
        assert log.record is not None
        return log.record

    waiting = {asyncio.ensure_future(follow_worker(worker)) for worker in record.workers}
    reached = all(worker in transports for worker in record.workers)
    starting = [asyncio.ensure_future(begin(record, transports))] if reached else []
    stopping: asyncio.Task[object] | None = None
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                worker_record = task.result()
                records[worker_record.worker] = worker_record
                if worker_record.state != "succeeded" and waiting and stopping is None:
                    name = record.worker_name(worker_record.worker)
                    reason = f"worker {name} ended: {worker_record.detail}"
                    emit(Note(f"{reason}; stopping the others"))
                    others = {w: t for w, t in transports.items() if w not in records}
                    stopping = asyncio.ensure_future(
                        launch.stop(record, others, failed_worker=worker_record.worker)
                    )
    finally:
        for task in waiting:
            task.cancel()
        for task_to_cancel in starting:
            task_to_cancel.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        if stopping is not None and not waiting:  # machines that are gone would be retried
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
        elif stopping is not None:
            await stopping
    return AttemptResult(record, job_status(record, records), records, offsets)


def report_result(result: AttemptResult, emit: Emit) -> int:
    """Emit how the job ended, and an error if it did not succeed; return its exit code."""
    status = result.status
    decisive = None if status.worker is None else result.workers.get(status.worker)
    is_own = status.state == "succeeded" or (
        decisive is not None
        and decisive.cause in JOB_CAUSES
        and decisive.exit_code == result.exit_code
    )
    emit(
        JobEnded(
            result.record.id,
            status.state,
            result.exit_code,
            is_own,
            status.worker,
            status.detail,
            None if status.worker is None else result.record.numbering.slice_of(status.worker),
        )
    )
    if result.status.state != "succeeded":
        emit(WarningIssued(_diagnostic(result), is_error=True))
    return result.exit_code


def _diagnostic(result: AttemptResult) -> Diagnostic:
    summaries = {
        "failed": "Job failed",
        "stopped": "Job was stopped",
        "timed_out": "Job reached its time limit",
        "lost": "Job was lost",
    }
    status, job = result.status, result.record.id
    where = ""
    if status.worker is not None and len(result.workers) > 1:
        where = f"worker {result.record.worker_name(status.worker)}: "
    return Diagnostic(
        summaries[status.state],
        f"{job}: {where}{status.detail}",
        hint=f"See the whole log:\n    tpuctl logs {job}",
    )


async def stop_job(
    context: Context, record: JobRecord, *, grace: float = launch.GRACE_SECONDS
) -> JobStatus:
    """Stop the job on every worker: SIGTERM, then SIGKILL after `grace` seconds. Raises Conflict
    for a job of another stack."""
    require_own(context, record)
    on_machines = replace(context, stack=stack_of(record, context.stack))
    async with connections(on_machines, required=False) as transports:
        by = acting_user(context.cloud)
        return await stop(record, context.store, transports, context.emit, by, grace=grace)


async def stop(
    record: JobRecord,
    store: ObjectStore,
    transports: Mapping[int, Transport],
    emit: Emit,
    by: str,
    *,
    grace: float = launch.GRACE_SECONDS,
) -> JobStatus:
    """Stop the job on every worker and prevent further attempts, as requested by a person; return
    its status.

    Unreachable workers are stopped through the bucket, which their supervisors poll every few
    seconds. A job that has ended keeps its status.
    """
    await request_stop(store, record, by)
    # An attempt that is claimed after this sees the request before it starts.
    if record.is_waiting and (record := await with_start(store, record)).is_waiting:
        return mark_stopped(job_status(record, {}))
    record = at_latest_attempt(record, await read_attempts(store, record))
    records = dict(await worker_records(store, record, emit))
    running = [w for w in record.workers if w not in records or not records[w].has_ended]
    reachable = {worker: transports[worker] for worker in running if worker in transports}
    records |= await launch.stop(record, reachable, grace=grace)
    unreachable = [w for w in running if w not in records or records[w].state not in ENDED]
    if unreachable:
        await launch.stop_through_bucket(record, store)
        names = ", ".join(map(record.worker_name, unreachable))
        emit(Note(f"worker {names} not reachable; requested the stop through the bucket"))
    return mark_stopped(job_status(record, records))
