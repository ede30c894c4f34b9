"""The jobs of a stack and their status, read from its bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from tpuctl.cloud.objects import ObjectInfo, ObjectStore
from tpuctl.errors import Conflict, NotFound, Usage
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.attempts import (
    at_latest_attempt,
    is_stop_requested,
    read_attempts,
    read_end,
    read_record,
    with_start,
)
from tpuctl.jobs.logs import worker_records
from tpuctl.model.events import Emit, WarningIssued, ignore
from tpuctl.model.jobs.job import (
    EXIT_LOST,
    EXIT_STOPPED,
    EndState,
    JobRecord,
    JobStatus,
    JobSummary,
    job_status,
)
from tpuctl.model.text.names import JOBS
from tpuctl.resources.project.stack_record import read_contents
from tpuctl.units import format_duration

READERS = 16
NOT_ENDED_BY_JOB = ("queued", "submitted", "lost")


class SeveralRunning(Conflict):
    """Several jobs are running, or wait in the queue while none runs, and none was named."""

    def __init__(self, jobs: Sequence[JobRecord], listing: str) -> None:
        super().__init__(
            "Several jobs are waiting" if jobs[0].is_waiting else "Several jobs are running",
            listing,
            hint="Pass the id of one of them, or its last word. To list jobs:\n    tpuctl jobs",
        )
        self.jobs = tuple(jobs)


async def jobs(context: Context) -> list[JobSummary]:
    """All jobs of the stack, latest first; empty if the bucket does not exist.

    A job whose records are damaged is left out, with a warning that names the object.
    """
    try:
        return await list_jobs(context.store, context.emit)
    except NotFound:
        return []


async def find_job(context: Context, name: str = "", attempt: int | None = None) -> JobRecord:
    """A job by its id or the last word of it; by default the running job, or else the latest.

    The record is of the last attempt, or of attempt number `attempt`; Usage if it is unknown.
    Raises NotFound, and SeveralRunning if none is named and several are running.
    """
    store = context.store
    try:
        record = await (load_job(store, name, attempt) if name else _meant_job(context, attempt))
    except NotFound:  # the job, or a bucket to look for it in
        if name:
            raise NotFound(
                "Job not found",
                f"{name} is not in gs://{store.name}",
                hint="List jobs:\n    tpuctl jobs",
            ) from None
        record = None
    if record is None:
        raise NotFound(
            "No jobs",
            f"no job was submitted to stack {context.stack.name}",
            hint="Submit one:\n    tpuctl run SCRIPT",
        )
    return record


async def _meant_job(context: Context, attempt: int | None) -> JobRecord | None:
    store = context.store
    running = await running_jobs(store)
    if of_stack := [record for record in running if record.stack == context.stack.name]:
        running = of_stack  # stacks may share a bucket
    if started := [record for record in running if not record.is_waiting]:
        running = started
    if len(running) > 1:
        now = context.cloud.server_clock.now()
        raise SeveralRunning(running, "\n".join(describe_job(job, now) for job in running))
    return await (
        load_job(store, running[0].id, attempt) if running else latest_job(store, attempt)
    )


def require_own(context: Context, record: JobRecord) -> None:
    """Raise Conflict if a job is of another stack with the same bucket: what follows a job may
    create its machines again."""
    if record.stack != context.stack.names.owner:
        raise Conflict(
            "Job of another stack",
            f"job {record.id} runs on stack {record.stack}; this is stack {context.stack.name}",
            hint=f"In the folder of its stack file, or with its name:\n"
            f"    tpuctl logs {record.id} --stack {record.stack} --project {record.project}",
        )


def describe_job(record: JobRecord, now: datetime) -> str:
    """The job in a line: its id, what it runs, and since when."""
    age = format_duration(max(0.0, (now - record.submitted).total_seconds()))
    return f"{record.id}: {record.command}, since {record.submitted:%H:%M} UTC ({age})"


async def load_job(store: ObjectStore, job: str, attempt: int | None = None) -> JobRecord:
    """The record of a job by its id, or by the last word of it if that is unique.

    The record is of the last attempt, or of attempt number `attempt`.
    """
    try:
        return await _at_attempt(store, await _read(store, job), attempt)
    except NotFound:
        ids = [job_id for job_id in await job_ids(store) if job_id.endswith(f"-{job}")]
    if len(ids) == 1:
        return await _at_attempt(store, await _read(store, ids[0]), attempt)
    if ids:
        raise Conflict("Ambiguous job name", ", ".join(ids), hint="Use the full id.")
    raise NotFound(
        "Job not found", f"{job} is not in gs://{store.name}", hint="List jobs:\n    tpuctl jobs"
    )


async def latest_job(store: ObjectStore, attempt: int | None = None) -> JobRecord | None:
    """The job submitted last; None if there are no jobs."""
    ids = await job_ids(store)
    if not ids:
        return None
    return await _at_attempt(store, await _read(store, ids[-1]), attempt)


async def _at_attempt(store: ObjectStore, record: JobRecord, number: int | None) -> JobRecord:
    if number == 1:
        return record
    attempts = await read_attempts(store, record)
    if number is None:
        return at_latest_attempt(record, attempts)
    matching = [attempt for attempt in attempts if attempt.number == number]
    if not matching:
        raise Usage(
            "Attempt not found",
            f"attempts of job {record.id}: {len(attempts) + 1}",
            hint=f"See the log of the last attempt:\n    tpuctl logs {record.id}",
            where="--attempt",
        )
    return record.of(matching[0])


async def list_jobs(store: ObjectStore, emit: Emit = ignore) -> list[JobSummary]:
    """All jobs in the bucket, latest first, without those whose records are damaged."""
    return await _summarize(store, reversed(await job_ids(store)), emit)


async def running_jobs(store: ObjectStore) -> list[JobRecord]:
    """The jobs that have not ended, latest first, by their records in the bucket."""
    ids = [*reversed(await job_ids(store))]
    running: list[JobRecord] = []
    for start in range(0, len(ids), READERS):
        summaries = await _summarize(store, ids[start : start + READERS], ignore)
        running += [job.record for job in summaries if job.status.exit_code is None]
        if summaries and await _is_taken_down(store, summaries[-1].record):
            break  # so were the machines of all jobs before it
    return running


async def _summarize(store: ObjectStore, ids: Iterable[str], emit: Emit) -> list[JobSummary]:
    semaphore = asyncio.Semaphore(READERS)

    async def summarize(job: str) -> JobSummary | None:
        async with semaphore:
            try:
                first = await _read(store, job)
                attempts = await read_attempts(store, first)
                record = at_latest_attempt(first, attempts)
                return JobSummary(record, await read_status(store, record), tuple(attempts))
            except NotFound:  # deleted in the meantime
                return None
            except Conflict as error:
                emit(WarningIssued(error.diagnostics[0]))
                return None

    summaries = await asyncio.gather(*map(summarize, ids))
    return [summary for summary in summaries if summary is not None]


async def read_status(store: ObjectStore, record: JobRecord) -> JobStatus:
    """The attempt's status according to the bucket."""
    return await reconcile_status(
        store, record, job_status(record, await worker_records(store, record))
    )


async def reconcile_status(store: ObjectStore, record: JobRecord, status: JobStatus) -> JobStatus:
    """The status from the worker records, corrected by what else is in the bucket: the stack was
    taken down, or a stop was requested. Of a queued job whose machines were deleted before they had
    written their last records, what was seen of its end."""
    if status.exit_code is None and await _is_taken_down(store, record):
        end = await read_end(store, record) if record.queued is not None else None
        if end is not None and end.exit_code not in (EXIT_STOPPED, EXIT_LOST):
            state: EndState = "failed" if end.exit_code else "succeeded"
            return replace(status, state=state, exit_code=end.exit_code, finished=end.ended)
        status = replace(
            status, state="lost", exit_code=EXIT_LOST, detail="the stack was taken down"
        )
    is_open = status.state in NOT_ENDED_BY_JOB
    return mark_stopped(status) if is_open and await is_stop_requested(store, record) else status


async def _is_taken_down(store: ObjectStore, record: JobRecord) -> bool:
    """Whether `down` has run, or is running, since the attempt started."""
    if record.placement is None:
        return False
    contents = await read_contents(store, record.stack)
    return contents is not None and contents.down_count != record.placement.down_count


def mark_stopped(status: JobStatus) -> JobStatus:
    """The status of a job whose stop was requested: no further attempt will start."""
    if status.state not in NOT_ENDED_BY_JOB:
        return status
    return replace(status, state="stopped", exit_code=EXIT_STOPPED, detail="stopped by request")


async def job_ids(store: ObjectStore) -> list[str]:
    """The ids of all jobs in the order of their submission, by the bucket's clock."""
    return in_submitted_order(await store.list(f"{JOBS}/", f"{JOBS}/*/job.json"))


def in_submitted_order(objects: Iterable[ObjectInfo]) -> list[str]:
    """The jobs whose records are among these objects, by the bucket's clock."""
    records = [info for info in objects if info.name.endswith("/job.json")]
    records.sort(key=lambda info: (info.created, info.generation))
    return [info.name.removesuffix("/job.json").removeprefix(f"{JOBS}/") for info in records]


async def _read(store: ObjectStore, job: str) -> JobRecord:
    record = await read_record(store, f"{JOBS}/{job}/job.json", JobRecord, id=job)
    return record if record.queued is None else await with_start(store, record)
