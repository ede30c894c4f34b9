"""Submit a job: bundle, upload and start it on the workers."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from tpuctl.cloud.objects import ObjectStore
from tpuctl.cloud.threads import in_thread
from tpuctl.engine.step import Step, step
from tpuctl.errors import Conflict, Diagnostic, TpuctlError
from tpuctl.files import cache_home
from tpuctl.flows.jobs.jobs import job_ids
from tpuctl.flows.jobs.submission import Submission, job_network, worker_environment
from tpuctl.jobs.bundle import Bundle, build_bundle
from tpuctl.jobs.bundle_upload import BundleUpload, extend_bundle_lifetime, upload_bundle
from tpuctl.jobs.launch import Launch, start, stop_through_bucket
from tpuctl.model.events import Emit, WarningIssued
from tpuctl.model.jobs.job import JobRecord, lost_worker, new_job_id
from tpuctl.remote.transport import Transport
from tpuctl.units import counted, decimal_size, transferred

T = TypeVar("T")


async def submit(
    submission: Submission,
    store: ObjectStore,
    transports: Mapping[int, Transport],
    emit: Emit,
    *,
    choice: random.Random | None = None,
) -> JobRecord:
    """Bundle, upload and start; returns once every worker of the job has a running supervisor.

    The record is written to the bucket before anything starts. `transports` has all workers of
    the job. If this raises, nothing is running.
    """
    choice = choice or random.SystemRandom()
    submission = await with_bundle(submission, emit)
    bundle = submission.bundle
    assert bundle is not None
    shipped, used = await asyncio.gather(upload(bundle, store, transports, emit), used_ids(store))
    at = store.clock.now()
    record = new_record(submission, bundle, new_job_id(at, choice, used), at)
    if shipped.name is None:
        emit(WarningIssued(_NO_BUCKET))
    else:
        record = record.model_copy(update={"bundle_name": shipped.name})
        record = await write_record(store, record, choice, used)
    await start_attempt(submission, record, store, transports, emit)
    return record


async def upload(
    bundle: Bundle, store: ObjectStore, transports: Mapping[int, Transport], emit: Emit
) -> BundleUpload:
    """Upload what is missing of a bundle, as a step; `upload_bundle` describes the rest."""
    with (
        tempfile.TemporaryDirectory(prefix="tpuctl-") as scratch,
        step(emit, "job/upload", "upload") as progress,
    ):
        uploaded = await upload_bundle(
            bundle,
            store,
            transports,
            Path(scratch),
            progress=_on_event_loop(partial(_report_sent, progress)),
        )
        progress.result = _describe_upload(uploaded, store)
    return uploaded


async def start_attempt(
    submission: Submission,
    record: JobRecord,
    store: ObjectStore,
    transports: Mapping[int, Transport],
    emit: Emit,
) -> None:
    """Start the record's attempt on all its workers; if this raises, on none."""
    if record.attempt > 1:
        with suppress(TpuctlError):  # workers report a missing bundle themselves
            await extend_bundle_lifetime(store, record.bundle_name)
    machines = submission.machines
    # Independent nodes do not wait for each other.
    is_one_cluster = submission.slices == len(submission.nodes) or len(submission.nodes) <= 1
    launch = Launch(
        env=submission.env,
        worker_env={
            worker: worker_environment(submission, record, worker) for worker in record.workers
        },
        first_access=machines.first_access,
        secrets=submission.secrets,
        secret_seconds=machines.secret_seconds,
        network=job_network(submission),
        notify=submission.notify,
        compiled=machines.compiled,
        addresses=machines.addresses if is_one_cluster else (),
        at=store.clock.now(),
    )
    where = f"on {counted(len(record.workers), 'worker')}"
    attempt = f", attempt {record.attempt}" if record.attempt > 1 else ""
    try:
        await _step(
            emit,
            "job/start",
            "start",
            start(record, launch, record.bundle_name or None, transports),
            lambda _: f"{record.id} {where}{attempt}",
        )
    except TpuctlError as error:
        if record.bundle_name:
            with suppress(TpuctlError):
                await record_not_started(store, record, str(error))
        raise


_NO_BUCKET = Diagnostic(
    "Bucket not reachable",
    "the bundle was uploaded to the workers over SSH; `jobs` and `logs` will not find this job "
    "until its workers have written to the bucket",
    hint="Check that the bucket exists and that you have access:\n    tpuctl doctor",
)


async def used_ids(store: ObjectStore) -> list[str]:
    """The ids of the bucket's jobs; none if it cannot be read, which the upload reports."""
    try:
        return await job_ids(store)
    except TpuctlError:
        return []


async def write_record(
    store: ObjectStore, record: JobRecord, choice: random.Random, used: Sequence[str]
) -> JobRecord:
    """Write the record under an unused id."""
    for _ in range(10):
        try:
            text = record.model_dump_json(indent=2).encode()
            await store.put_bytes(record.object_name, text, if_generation=0)
        except Conflict:
            job = new_job_id(store.clock.now(), choice, [*used, record.id])
            record = record.model_copy(update={"id": job})
        else:
            return record
    raise Conflict(
        "No free job id",
        f"ten ids like {record.id} are in use",
        hint="Repeat the command: ids depend on the time. To see who submits so many jobs:\n"
        "    tpuctl jobs",
    )


async def record_not_started(store: ObjectStore, record: JobRecord, detail: str) -> None:
    """Record that the attempt did not start, and stop workers that may have started anyway.

    It is final if the person who submits the job sees it, or if no try can help; otherwise the next
    attempt may start.
    """
    await stop_through_bucket(record, store)
    at = store.clock.now()
    is_final = record.is_waiting or (record.attempt == 1 and record.queued is None)
    cause = "start" if is_final else "claim"
    for worker in record.workers:
        worker_record = lost_worker(record, worker, f"did not start: {detail}", at, cause=cause)
        with suppress(Conflict):  # the worker has written its own record
            await store.put_bytes(
                record.record_name(worker),
                worker_record.model_dump_json().encode(),
                if_generation=0,
            )


async def with_bundle(submission: Submission, emit: Emit) -> Submission:
    """The submission with its bundle, built as a step if it has none yet."""
    if submission.bundle is not None:
        return submission
    bundle = await _step(emit, "job/bundle", "create", make_bundle(submission), _describe_bundle)
    for warning in bundle.warnings:
        emit(WarningIssued(warning))
    return replace(submission, bundle=bundle)


async def make_bundle(submission: Submission) -> Bundle:
    """Bundle the submission's folder."""
    return await in_thread(
        build_bundle,
        submission.script,
        root=submission.root,
        include=submission.include,
        exclude=submission.exclude,
        additions=submission.additions,
        hashes=cache_home() / "file_hashes.json",
    )


def new_record(submission: Submission, bundle: Bundle, job: str, at: datetime) -> JobRecord:
    """The record of a job, before it is written."""
    machines = submission.machines
    return JobRecord(
        id=job,
        stack=submission.stack,
        project=submission.project,
        zone=machines.zone,
        node=machines.node,
        bucket=submission.bucket,
        kind=submission.kind,
        script=submission.program or bundle.script,
        path="" if submission.script is None or submission.additions else str(submission.script),
        args=submission.args,
        values=dict(submission.values),
        bundle=bundle.digest,
        bundle_bytes=bundle.size,
        worker_count=submission.worker_count,
        workers=submission.workers,
        slices=submission.slices,
        submitted=at,
        submitted_by=submission.submitted_by,
        submitted_as=submission.submitted_as,
        env=tuple(sorted(submission.env)),
        installation=submission.installation,
        framework=submission.framework.framework if submission.framework is not None else None,
        accelerator=machines.accelerator,
        runtime=machines.runtime,
        max_hours=submission.max_hours,
        timeout=submission.timeout,
        secrets=submission.secrets.recorded,
        retries=submission.retries,
        limits=submission.limits,
        placement=machines.placement,
    )


async def _step(
    emit: Emit, address: str, action: str, work: Awaitable[T], describe: Callable[[T], str]
) -> T:
    """Await `work` as one step."""
    with step(emit, address, action) as progress:
        result = await work
        progress.result = describe(result)
    return result


def _report_sent(progress: Step, done: int, total: int) -> None:
    progress.report_bytes(done, total, transferred(done, total))


def _describe_bundle(bundle: Bundle) -> str:
    return f"{counted(bundle.files, 'file')}, {decimal_size(bundle.size)}"


def _describe_upload(shipped: BundleUpload, store: ObjectStore) -> str:
    where = "the workers" if shipped.name is None else f"gs://{store.name}"
    if not shipped.sent_bytes:
        return f"already in {where}" if shipped.name is not None else f"already on {where}"
    suffix = " over SSH" if shipped.name is None else ""
    return f"{decimal_size(shipped.sent_bytes)} to {where}{suffix}"


def _on_event_loop(report: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """A thread-safe progress callback that reports on this event loop."""
    loop = asyncio.get_running_loop()

    def report_threadsafe(done: int, size: int) -> None:
        loop.call_soon_threadsafe(report, done, size)

    return report_threadsafe
