"""The jobs of a stack as its bucket knows them: found again from any machine, and how they fare."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import Conflict, NotFound, Usage
from tpuctl.flows.attempts import at_latest_attempt, is_stop_requested, read_attempts, read_record
from tpuctl.flows.context import Context
from tpuctl.jobs.logs import worker_records
from tpuctl.model.job import (
    EXIT_LOST,
    EXIT_STOPPED,
    JobRecord,
    JobStatus,
    JobSummary,
    job_status,
)
from tpuctl.model.names import JOBS
from tpuctl.resources.stack_record import read_contents

__all__ = [
    "find_job",
    "jobs",
    "latest_job",
    "list_jobs",
    "load_job",
    "mark_stopped",
    "read_status",
    "reconcile_status",
]

READERS = 16


async def jobs(context: Context) -> list[JobSummary]:
    """All jobs of the stack, the latest first; none where there is no bucket."""
    try:
        return await list_jobs(context.store)
    except NotFound:
        return []


async def find_job(context: Context, name: str = "", attempt: int | None = None) -> JobRecord:
    """A job by its id or its word; the latest when none is given. Raises NotFound.

    As its last attempt runs it, or that of this number. Raises Usage when there is none.
    """
    store = context.store
    try:
        record = await (load_job(store, name, attempt) if name else latest_job(store, attempt))
    except NotFound:  # the job, or a bucket to look for it in
        if name:
            raise NotFound(
                "No such job",
                f"{name} is not in gs://{store.name}",
                hint="See them with\n    tpuctl jobs",
            ) from None
        record = None
    if record is None:
        raise NotFound(
            "No job yet",
            f"nothing was submitted to stack {context.stack.name}",
            hint="Submit something with\n    tpuctl run SCRIPT",
        )
    return record


async def load_job(store: ObjectStore, job: str, attempt: int | None = None) -> JobRecord:
    """The record of a job by its id, or by its word when only one job has it.

    As the last attempt runs it, or the attempt of that number.
    """
    try:
        return await _at_attempt(store, await _read(store, job), attempt)
    except NotFound:
        ids = [job_id for job_id in await _ids(store) if job_id.endswith(f"-{job}")]
    if len(ids) == 1:
        return await _at_attempt(store, await _read(store, ids[0]), attempt)
    if ids:
        raise Conflict("Several jobs of that name", ", ".join(ids), hint="Give the whole id.")
    raise NotFound(
        "No such job", f"{job} is not in gs://{store.name}", hint="See them with\n    tpuctl jobs"
    )


async def latest_job(store: ObjectStore, attempt: int | None = None) -> JobRecord | None:
    """The job submitted last; None when there is none."""
    ids = await _ids(store)
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
            "No such attempt",
            f"job {record.id} has made {len(attempts) + 1}",
            hint=f"Read the last one's log with\n    tpuctl logs {record.id}",
            where="--attempt",
        )
    return record.of(matching[0])


async def list_jobs(store: ObjectStore) -> list[JobSummary]:
    """All jobs of the bucket, the latest first."""
    semaphore = asyncio.Semaphore(READERS)

    async def summarize(job: str) -> JobSummary:
        async with semaphore:
            first = await _read(store, job)
            attempts = await read_attempts(store, first)
            record = at_latest_attempt(first, attempts)
            return JobSummary(record, await read_status(store, record), tuple(attempts))

    ids = await _ids(store)
    return list(await asyncio.gather(*(summarize(job) for job in reversed(ids))))


async def read_status(store: ObjectStore, record: JobRecord) -> JobStatus:
    """How the attempt fares as far as the bucket knows."""
    return await reconcile_status(
        store, record, job_status(record, await worker_records(store, record))
    )


async def reconcile_status(store: ObjectStore, record: JobRecord, status: JobStatus) -> JobStatus:
    """What its workers said last, unless the bucket knows better: they went with the stack, or
    nobody will try again what was lost."""
    if status.exit_code is None and await _is_taken_down(store, record):
        status = replace(
            status, state="lost", exit_code=EXIT_LOST, detail="the stack was taken down"
        )
    is_open = status.state in ("submitted", "lost")
    return mark_stopped(status) if is_open and await is_stop_requested(store, record) else status


async def _is_taken_down(store: ObjectStore, record: JobRecord) -> bool:
    """Whether there was a `down` since the attempt began, or is one under way."""
    if record.footing is None:
        return False
    contents = await read_contents(store, record.stack)
    return contents is not None and contents.downs != record.footing.downs


def mark_stopped(status: JobStatus) -> JobStatus:
    """How a job stands that is not tried again: nobody will hear of what was lost."""
    if status.state not in ("submitted", "lost"):
        return status
    return replace(status, state="stopped", exit_code=EXIT_STOPPED, detail="stopped on request")


async def _ids(store: ObjectStore) -> list[str]:
    """Ids of all jobs; they sort by time."""
    objects = await store.list(f"{JOBS}/")
    return sorted(
        entry.name.removesuffix("/job.json").removeprefix(f"{JOBS}/")
        for entry in objects
        if entry.name.endswith("/job.json") and entry.name.count("/") == JOBS.count("/") + 2
    )


async def _read(store: ObjectStore, job: str) -> JobRecord:
    return await read_record(store, f"{JOBS}/{job}/job.json", JobRecord)
