"""Following jobs, stopping them, and finding them again from any machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import Conflict, Diagnostic, NotFound
from tpuctl.jobs import ship
from tpuctl.jobs.logs import LinePrefixer, WorkerLog, log_so_far, worker_records
from tpuctl.model.events import Emit, Event, LogChunk, Note, Warned
from tpuctl.model.job import ENDED, JobRecord, JobStatus, JobSummary, WorkerRecord, job_status
from tpuctl.model.names import JOBS
from tpuctl.remote.transport import Transport

__all__ = ["follow", "latest", "list_jobs", "load", "named", "show_log", "status", "stop"]

NOT_SHOWN = 1 << 62  # an offset past any log: the end is awaited, and no byte is sent
READERS = 16


async def follow(
    record: JobRecord,
    store: ObjectStore | None,
    transports: Mapping[int, Transport],
    emit: Emit,
    *,
    from_offsets: Mapping[int, int] | None = None,
    shown: Collection[int] | None = None,
    is_gone: Callable[[], Awaitable[bool]] | None = None,
) -> int:
    """Emit the logs of the `shown` workers (the first, by default) until the job has ended.

    Each byte is emitted once, in order per worker, from `from_offsets` on. A worker without a
    transport is followed through the bucket. When one worker fails the others are stopped.
    Returns the job's exit code. Cancelling leaves the job alone.
    """
    offsets = from_offsets or {}
    shown = record.workers[:1] if shown is None else shown
    records: dict[int, WorkerRecord] = {}

    async def one(worker: int) -> WorkerRecord:
        log = WorkerLog(
            record,
            worker,
            transport=transports.get(worker),
            store=store,
            offset=offsets.get(worker, 0) if worker in shown else NOT_SHOWN,
            is_gone=is_gone,
        )
        async for chunk in log.chunks():
            emit(LogChunk(worker, chunk, log.offset - len(chunk)))
        assert log.record is not None
        return log.record

    waiting = {asyncio.ensure_future(one(worker)) for worker in record.workers}
    stopping: asyncio.Task[object] | None = None
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                ended = task.result()
                records[ended.worker] = ended
                if ended.state != "succeeded" and waiting and stopping is None:
                    emit(Note(f"worker {ended.worker} ended: {ended.detail}; stopping the others"))
                    others = {w: t for w, t in transports.items() if w not in records}
                    stopping = asyncio.ensure_future(
                        ship.stop(record, others, because_of=ended.worker)
                    )
    finally:
        for task in waiting:
            task.cancel()
        if stopping is not None:
            await stopping
    result = job_status(record, records)
    assert result.exit_code is not None
    if result.state != "succeeded":
        emit(Warned(_verdict(record, result, records), is_error=True))
    return result.exit_code


async def show_log(
    record: JobRecord,
    workers: Sequence[int],
    store: ObjectStore,
    transports: Mapping[int, Transport],
    emit: Emit,
    *,
    offset: int = 0,
) -> None:
    """Emit what these workers have logged until now, one after the other, from `offset` on."""
    with named(emit, workers) as emit_named:
        for worker in workers:
            at = 0
            async for data in log_so_far(record, worker, transports.get(worker), store):
                emit_named(LogChunk(worker, data[max(0, offset - at) :], at))
                at += len(data)


@contextmanager
def named(emit: Emit, workers: Sequence[int]) -> Iterator[Emit]:
    """`emit` with the worker's name before each line, where there are several workers."""
    if len(workers) == 1:
        yield emit
        return
    width = len(str(max(workers)))
    prefixers = {one: LinePrefixer(f"[worker {one:>{width}}] ") for one in workers}

    def emit_named(event: Event) -> None:
        if not isinstance(event, LogChunk):
            emit(event)
        elif data := prefixers[event.worker].feed(event.data):
            emit(LogChunk(event.worker, data, event.offset))

    try:
        yield emit_named
    finally:
        for worker, prefixer in prefixers.items():
            if data := prefixer.finish():
                emit(LogChunk(worker, data, 0))


def _verdict(
    record: JobRecord, result: JobStatus, records: Mapping[int, WorkerRecord]
) -> Diagnostic:
    summaries = {
        "failed": "Job failed",
        "stopped": "Job was stopped",
        "timed_out": "Job reached its time limit",
        "lost": "Job was lost",
    }
    where = f"worker {result.worker}: " if len(records) > 1 else ""
    return Diagnostic(
        summaries[result.state],
        f"{record.id}: {where}{result.detail}",
        hint=f"Read its whole log again with\n    tpuctl logs {record.id}",
    )


async def stop(
    record: JobRecord,
    store: ObjectStore,
    transports: Mapping[int, Transport],
    emit: Emit,
    *,
    grace: float = ship.GRACE_SECONDS,
) -> JobStatus:
    """End the job on every worker, and return how it stands then.

    Workers that cannot be reached are asked through the bucket, where their supervisors look
    every few seconds. A job that has ended stays as it ended.
    """
    records = dict(await worker_records(store, record))
    running = [w for w in record.workers if w not in records or not records[w].has_ended]
    reachable = {worker: transports[worker] for worker in running if worker in transports}
    records |= await ship.stop(record, reachable, grace=grace)
    unheard = [w for w in running if w not in records or records[w].state not in ENDED]
    if unheard:
        await ship.stop_through_bucket(record, store)
        names = ", ".join(map(str, unheard))
        emit(Note(f"worker {names} could not be reached; it is asked through the bucket"))
    return job_status(record, records)


async def load(store: ObjectStore, job: str) -> JobRecord:
    """The record of a job by its id, or by its word when only one job has it."""
    try:
        return await _read(store, f"{JOBS}/{job}/job.json")
    except NotFound:
        ids = [known for known in await _ids(store) if known.endswith(f"-{job}")]
    if len(ids) == 1:
        return await _read(store, f"{JOBS}/{ids[0]}/job.json")
    if ids:
        raise Conflict("Several jobs of that name", ", ".join(ids), hint="Give the whole id.")
    raise NotFound(
        "No such job", f"{job} is not in gs://{store.name}", hint="See them with\n    tpuctl jobs"
    )


async def latest(store: ObjectStore) -> JobRecord | None:
    """The job submitted last; None when there is none."""
    ids = await _ids(store)
    return await _read(store, f"{JOBS}/{ids[-1]}/job.json") if ids else None


async def list_jobs(store: ObjectStore) -> list[JobSummary]:
    """All jobs of the bucket, the latest first."""
    turn = asyncio.Semaphore(READERS)

    async def one(job: str) -> JobSummary:
        async with turn:
            record = await _read(store, f"{JOBS}/{job}/job.json")
            return JobSummary(record, await status(store, record))

    ids = await _ids(store)
    return list(await asyncio.gather(*(one(job) for job in reversed(ids))))


async def status(store: ObjectStore, record: JobRecord) -> JobStatus:
    """How the job fares as far as the bucket knows."""
    return job_status(record, await worker_records(store, record))


async def _ids(store: ObjectStore) -> list[str]:
    """Ids of all jobs; they sort by time."""
    found = await store.list(f"{JOBS}/")
    return sorted(
        entry.name.removesuffix("/job.json").removeprefix(f"{JOBS}/")
        for entry in found
        if entry.name.endswith("/job.json") and entry.name.count("/") == JOBS.count("/") + 2
    )


async def _read(store: ObjectStore, name: str) -> JobRecord:
    text = await store.get_bytes(name)
    try:
        return JobRecord.model_validate_json(text)
    except ValueError as error:
        raise Conflict(
            "Job record cannot be read",
            store.uri(name),
            hint="A newer tpuctl may have written it: try again with the newest one.",
        ) from error
