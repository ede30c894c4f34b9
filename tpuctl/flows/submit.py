"""From a script on this machine to a job on the workers."""

from __future__ import annotations

import asyncio
import getpass
import platform
import random
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from tpuctl.cloud.objects import ObjectStore
from tpuctl.cloud.threads import in_thread
from tpuctl.engine.step import step
from tpuctl.errors import Conflict, Diagnostic, TpuctlError
from tpuctl.jobs.bundle import Bundle, build_bundle
from tpuctl.jobs.ship import Launch, ship_bundle, start, stop_through_bucket
from tpuctl.model.events import Emit, StepProgress, Warned
from tpuctl.model.job import JobRecord, lost_worker, new_job_id
from tpuctl.model.stack import Stack
from tpuctl.remote.transport import Transport

__all__ = ["Submission", "submit", "worker_environment"]

T = TypeVar("T")


@dataclass(frozen=True)
class Submission:
    """A script and everything that its run on a stack depends on."""

    stack: str
    project: str
    zone: str
    node: str
    bucket: str
    script: Path
    worker_count: int
    workers: tuple[int, ...]
    args: tuple[str, ...] = ()
    cloud: str = "google"
    runtime: str = ""
    root: Path | None = None  # the folder to ship; the script's own by default
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    requirements: str | None = "requirements.txt"
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_hours: float | None = None
    submitted_by: str = ""

    @classmethod
    def of(
        cls, stack: Stack, script: Path, args: tuple[str, ...] = (), *, cloud: str = "google"
    ) -> Submission:
        """What the stack file says about running this script."""
        job = stack.file.job
        return cls(
            stack=stack.name,
            project=stack.project,
            zone=stack.zone,
            node=stack.names.node,
            bucket=stack.bucket,
            script=script,
            worker_count=stack.accelerator.workers,
            workers=stack.job_workers(),
            args=args,
            cloud=cloud,
            runtime=stack.runtime.version,
            include=job.include,
            exclude=job.exclude,
            requirements=job.requirements,
            env=dict(job.env),
            max_hours=stack.file.limits.max_hours,
            submitted_by=f"{getpass.getuser()}@{platform.node()}",
        )


def worker_environment(submission: Submission, record: JobRecord, worker: int) -> dict[str, str]:
    """The variables that tell a script where it runs."""
    found = {
        "TPUCTL_JOB": record.id,
        "TPUCTL_ATTEMPT": str(record.attempt),
        "TPUCTL_WORKER": str(worker),
        "TPUCTL_WORKERS": str(record.worker_count),
        "TPUCTL_BUCKET": record.bucket,
        "TPUCTL_OUTPUT": record.output,
        "TPUCTL_CLOUD": submission.cloud,
        "TPU_NAME": "local" if record.worker_count == 1 else record.node,
        "TPU_ZONE": record.zone,
        "TPU_PROJECT": record.project,
    }
    if "-pod" in submission.runtime:
        found["TPU_LOAD_LIBRARY"] = "0"
    return found


async def submit(
    submission: Submission,
    store: ObjectStore,
    transports: Mapping[int, Transport],
    emit: Emit,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    choice: random.Random | None = None,
) -> JobRecord:
    """Bundle, ship and start; returns once every chosen worker has a running supervisor.

    The record is in the bucket before anything starts. `transports` has every worker that is to
    start. Nothing runs when this raises.
    """
    choice = choice or random.SystemRandom()
    with tempfile.TemporaryDirectory(prefix="tpuctl-") as scratch:
        bundle = await _step(
            emit, "job/bundle", "make", _bundle(submission, Path(scratch)), _describe_bundle
        )
        for warning in bundle.warnings:
            emit(Warned(warning))
        record = _record(submission, bundle, new_job_id(now(), choice), now())

        def show(done: int, size: int) -> None:
            emit(StepProgress("job/upload", f"{_size(done)} of {_size(size)}", done / size))

        bundle_name, _ = await _step(
            emit,
            "job/upload",
            "send",
            ship_bundle(bundle, store, transports, progress=_on_this_loop(show)),
            lambda shipped: _describe_upload(shipped, store),
        )
    if bundle_name is None:
        emit(Warned(_NO_BUCKET))
    else:
        record = await _announce(store, record, choice, now)
    launch = Launch(
        requirements=submission.requirements,
        env=submission.env,
        worker_env={
            worker: worker_environment(submission, record, worker) for worker in record.workers
        },
    )
    try:
        await _step(
            emit,
            "job/start",
            "start",
            start(record, launch, bundle_name, transports),
            lambda _: f"{record.id} on {_count(len(record.workers), 'worker')}",
        )
    except TpuctlError as error:
        if bundle_name is not None:
            with suppress(TpuctlError):
                await _tell_not_started(store, record, str(error), now())
        raise
    return record


_NO_BUCKET = Diagnostic(
    "Bucket could not be reached",
    "the bundle went to the workers over SSH; `jobs` and `logs` will not know of this job "
    "until its workers have written to the bucket",
)


async def _announce(
    store: ObjectStore, record: JobRecord, choice: random.Random, now: Callable[[], datetime]
) -> JobRecord:
    """Write the record under an id that nobody has taken."""
    for _ in range(10):
        try:
            text = record.model_dump_json(indent=2).encode()
            await store.put_bytes(record.object_name, text, if_generation=0)
        except Conflict:
            record = record.model_copy(update={"id": new_job_id(now(), choice)})
        else:
            return record
    raise Conflict("No free job id", f"ten ids like {record.id} are taken")


async def _tell_not_started(
    store: ObjectStore, record: JobRecord, detail: str, at: datetime
) -> None:
    """Let the record say so, and end what may have started though its answer was lost."""
    await stop_through_bucket(record, store)
    for worker in record.workers:
        text = lost_worker(record, worker, f"did not start: {detail}", at).model_dump_json()
        with suppress(Conflict):  # it has spoken for itself
            await store.put_bytes(record.record_name(worker), text.encode(), if_generation=0)


async def _bundle(submission: Submission, scratch: Path) -> Bundle:
    return await in_thread(
        build_bundle,
        submission.script,
        scratch,
        root=submission.root,
        include=submission.include,
        exclude=submission.exclude,
    )


def _record(submission: Submission, bundle: Bundle, job: str, at: datetime) -> JobRecord:
    return JobRecord(
        id=job,
        stack=submission.stack,
        project=submission.project,
        zone=submission.zone,
        node=submission.node,
        bucket=submission.bucket,
        script=bundle.script,
        args=submission.args,
        bundle=bundle.digest,
        bundle_bytes=bundle.size,
        worker_count=submission.worker_count,
        workers=submission.workers,
        submitted=at,
        submitted_by=submission.submitted_by,
        env=tuple(sorted(submission.env)),
        max_hours=submission.max_hours,
    )


async def _step(
    emit: Emit, address: str, action: str, work: Awaitable[T], describe: Callable[[T], str]
) -> T:
    """Await the work as one step of the story."""
    with step(emit, address, action) as one:
        result = await work
        one.result = describe(result)
    return result


def _describe_bundle(bundle: Bundle) -> str:
    return f"{_count(bundle.files, 'file')}, {_size(bundle.size)}"


def _describe_upload(shipped: tuple[str | None, bool], store: ObjectStore) -> str:
    name, was_sent = shipped
    if name is None:
        return "to the workers over SSH"
    return f"to gs://{store.name}" if was_sent else "the bucket has this bundle already"


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _on_this_loop(show: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Progress from other threads, told where events are emitted."""
    loop = asyncio.get_running_loop()

    def tell(done: int, size: int) -> None:
        loop.call_soon_threadsafe(show, done, size)

    return tell
