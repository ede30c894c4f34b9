"""`status`: what exists of a stack and the state of its jobs, once or continuously."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from tpuctl.cloud.objects import ObjectInfo, ObjectStore
from tpuctl.errors import ApiDisabled, Conflict, Diagnostic, NotFound, TpuctlError
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.jobs import job_ids, load_job, reconcile_status
from tpuctl.flows.machines.further_tpus import list_further
from tpuctl.flows.machines.inventory import list_resources, was_brought_up
from tpuctl.flows.stack.activity import read_activity
from tpuctl.flows.stack.apply import combined_error
from tpuctl.flows.stack.spending import Ledgers, read_ledgers
from tpuctl.jobs.launch import supervisor_command
from tpuctl.jobs.log_position import LogPosition
from tpuctl.jobs.logs import parse_worker
from tpuctl.model.jobs.job import JobRecord, JobStatus, WorkerRecord, job_status
from tpuctl.model.logs.progress import LINES, TAIL, Progress, progress_of
from tpuctl.model.status.inventory import with_requests
from tpuctl.model.status.snapshot import JobSnapshot, Snapshot, StackStatus
from tpuctl.model.text.record_parsing import parse_answer
from tpuctl.resources.network.nat import Nat

if TYPE_CHECKING:
    from tpuctl.remote.ssh import SshTransport

RECENT_JOBS = 8  # the latest jobs, checked for running ones
READERS = 16
LOG_TIMEOUT_SECONDS = 5.0  # for a machine to return the end of the log
RECONNECT_SECONDS = 60.0  # before reconnecting to one that did not


async def status(context: Context, *, is_partial: bool = False) -> StackStatus:
    """What exists in the cloud now. Raises NotFound for a project that does not exist, or is not
    visible, unless `up` would create it; and the errors of what cannot be listed, unless the
    status may be partial.

    Of a stack that was never up, disabled APIs have nothing.
    """
    stack = context.stack
    unlisted: dict[str, TpuctlError] = {}
    # Only these spend a call on it.
    may_have_nat = Nat.applies(stack) or not context.has_file
    listed = await list_resources(
        context.cloud,
        stack.project,
        stack=stack.name,
        include=lambda kind: kind.is_billable and (kind is not Nat or may_have_nat),
        must_exist=not (context.has_file and stack.file.project.create),
        unused_apis=stack.unused_apis if context.has_file else (),
        on_error=lambda kind, error: unlisted.update({f"{kind.kind}/*": error}),
    )
    if stack.controller is not None or not context.has_file:
        listed += await list_further(stack, context.cloud, unlisted)
    disabled = [kind for kind, error in unlisted.items() if isinstance(error, ApiDisabled)]
    if disabled and context.has_file and not await was_brought_up(stack, context.cloud, listed):
        for kind in disabled:
            del unlisted[kind]
    if unlisted and not is_partial:
        raise combined_error(unlisted, stack.project)
    resources = with_requests(listed, stack.file.tpu.capacity if context.has_file else None)
    buckets = [resource.name for resource in resources if resource.kind == "bucket"]
    return StackStatus(
        stack,
        tuple(resource.node for resource in resources if resource.node is not None),
        next(iter(buckets), None),
        tuple(
            resource
            for resource in resources
            if resource.node is None and resource.kind != "bucket"
        ),
        tuple(resources),
        context.cloud.server_clock.now(),
        unlisted,
    )


async def take_snapshot(context: Context) -> Snapshot:
    """The stack and its jobs now, read from the cloud and the bucket, as far as possible."""
    return await StackWatch(context, reaches_machines=False, is_partial=True).poll()


async def watch(context: Context, seconds: float) -> AsyncIterator[Snapshot]:
    """Yield a snapshot every `seconds`, forever, with log progress read from the machines.

    The first snapshot raises its errors; later ones report them next to the last good state.
    """
    stack_watch = StackWatch(context, reaches_machines=context.has_file)
    try:
        while True:
            yield await stack_watch.poll()
            await asyncio.sleep(seconds)
    finally:
        await stack_watch.close()


class StackWatch:
    """Takes snapshots; keeps the last good state for when one fails."""

    def __init__(
        self, context: Context, *, reaches_machines: bool, is_partial: bool = False
    ) -> None:
        self._context = context
        self._is_partial = is_partial
        self._reaches_machines = reaches_machines
        self._jobs: JobWatch | None = None
        self._last: Snapshot | None = None
        self._ledgers: Ledgers | None = None

    async def poll(self) -> Snapshot:
        last = self._last
        jobs, problem = last.recent_jobs if last is not None else (), None
        try:
            stack_status = await status(self._context, is_partial=self._is_partial)
        except TpuctlError as error:
            if last is None:
                raise
            stack_status, problem = last.status, error.diagnostics[0]
        else:
            try:
                jobs, problem = await self._poll_jobs(stack_status.bucket)
                self._ledgers = await self._read_ledgers(stack_status)
            except TpuctlError as error:
                problem = error.diagnostics[0]
        spending = None if self._ledgers is None else self._ledgers.spending
        budget = None if self._ledgers is None else self._ledgers.budget
        activity = None
        if stack_status.bucket is not None:
            store = self._context.cloud.objects(stack_status.bucket)
            activity = await read_activity(store, self._context.stack.name)
        self._last = Snapshot(
            stack_status.at, stack_status, jobs, problem, activity, spending, budget
        )
        return self._last

    async def _read_ledgers(self, stack_status: StackStatus) -> Ledgers | None:
        if stack_status.bucket is None:
            return None
        return await read_ledgers(stack_status.stack, self._context.cloud)

    async def _poll_jobs(
        self, bucket: str | None
    ) -> tuple[tuple[JobSnapshot, ...], Diagnostic | None]:
        if bucket is None:
            return (), None
        if self._jobs is None:
            store = self._context.cloud.objects(bucket)
            self._jobs = JobWatch(store, self._context if self._reaches_machines else None)
        jobs = tuple(await self._jobs.poll())
        return jobs, self._jobs.problem

    async def close(self) -> None:
        if self._jobs is not None:
            await self._jobs.close()


class JobWatch:
    """Reads the state of a stack's jobs, caching what cannot have changed.

    With `context` the end of a log is read from the machine, otherwise (or if that fails) from
    the copy in the bucket, which is a few seconds old.
    """

    def __init__(self, store: ObjectStore, context: Context | None = None) -> None:
        self._store = store
        self.problem: Diagnostic | None = None  # of a job that could not be read
        self._ended: dict[str, JobSnapshot] = {}
        self._records: dict[str, tuple[int, WorkerRecord]] = {}  # by name, with the generation
        self._progress: dict[str, tuple[int, Progress]] = {}
        self._machine = _Machine(context)

    async def poll(self) -> list[JobSnapshot]:
        """The latest jobs in the order of submission; empty if the bucket does not exist."""
        self.problem = None
        try:
            ids = (await job_ids(self._store))[-RECENT_JOBS:]
        except NotFound:
            return []
        open_ids = [job_id for job_id in ids if job_id not in self._ended or job_id == ids[-1]]
        results = await asyncio.gather(*(self._job(job_id) for job_id in open_ids))
        jobs = self._ended | {job.record.id: job for job in results if job is not None}
        self._ended = {
            job_id: job for job_id, job in jobs.items() if job.status.exit_code is not None
        }
        return [jobs[job_id] for job_id in ids if job_id in jobs]

    async def close(self) -> None:
        await self._machine.close()

    async def _job(self, job: str) -> JobSnapshot | None:
        try:
            return await self._snapshot(await load_job(self._store, job))
        except NotFound:  # a folder without a job record
            return None
        except Conflict as error:  # damaged records
            self.problem = error.diagnostics[0]
            return None

    async def _snapshot(self, record: JobRecord) -> JobSnapshot:
        objects = {info.name: info for info in await self._store.list(f"{record.attempt_prefix}/")}
        workers = await self._workers(record, objects)
        state = await reconcile_status(self._store, record, job_status(record, workers))
        log = objects.get(record.log_name(record.workers[0]))
        return JobSnapshot(
            record,
            state,
            workers,
            await self._progress_of(record, state, log),
            log.updated if log is not None else None,
        )

    async def _workers(
        self, record: JobRecord, objects: Mapping[str, ObjectInfo]
    ) -> dict[int, WorkerRecord]:
        semaphore = asyncio.Semaphore(READERS)

        async def read_worker(worker: int) -> WorkerRecord | None:
            info = objects.get(record.record_name(worker))
            if info is None:
                return None
            generation, cached = self._records.get(info.name, (0, None))
            if cached is None or generation != info.generation:
                async with semaphore:
                    with suppress(NotFound):
                        text = await self._store.get_bytes(info.name)
                        cached = parse_worker(record, worker, text, self._store.uri(info.name))
                        self._records[info.name] = info.generation, cached
            return cached

        results = await asyncio.gather(*(read_worker(worker) for worker in record.workers))
        return {result.worker: result for result in results if result is not None}

    async def _progress_of(
        self, record: JobRecord, status: JobStatus, log: ObjectInfo | None
    ) -> Progress:
        if status.exit_code is None and (end := await self._machine.log_end(record)):
            return progress_of(end)
        if log is None:
            return Progress()
        generation, progress = self._progress.get(log.name, (0, Progress()))
        if generation != log.generation:
            with suppress(NotFound):
                begin = max(0, log.size - TAIL)
                progress = progress_of(await self._store.read_range(log.name, begin, TAIL))
                self._progress[log.name] = log.generation, progress
        return progress


class _Machine:
    """A connection to the first worker of a job, opened in the background."""

    def __init__(self, context: Context | None) -> None:
        self._context = context
        self._transports: Mapping[int, SshTransport] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._connected_at = -RECONNECT_SECONDS

    async def log_end(self, record: JobRecord) -> bytes:
        """The last lines of the job's log; empty if they are not available immediately."""
        worker = record.workers[0]
        transport = self._transports.get(worker)
        if transport is None:
            self._connect(worker)
            return b""
        try:
            async with asyncio.timeout(LOG_TIMEOUT_SECONDS):
                return await _read_log_end(record, transport)
        except (TpuctlError, TimeoutError, ValueError):
            await self._disconnect()
            return b""

    def _connect(self, worker: int) -> None:
        loop = asyncio.get_running_loop()
        if self._context is None or loop.time() - self._connected_at < RECONNECT_SECONDS:
            return
        self._connected_at = loop.time()
        self._connecting = loop.create_task(self._open_connection(self._context, worker))

    async def _open_connection(self, context: Context, worker: int) -> None:
        from tpuctl.flows.machines.workers import transports

        with suppress(TpuctlError):
            connected = await transports(context)
            if worker in connected:
                await connected[worker].connect()
                self._transports = connected

    async def _disconnect(self) -> None:
        reached, self._transports = self._transports, {}
        await asyncio.gather(
            *(transport.close() for transport in reached.values()), return_exceptions=True
        )

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        await self._disconnect()


async def _read_log_end(record: JobRecord, transport: SshTransport) -> bytes:
    position = await transport.run(supervisor_command(record, "locate", "--lines", str(LINES)))
    if position.exit_code != 0:
        return b""
    answer = parse_answer(LogPosition, position.stdout, f"worker {transport.name}")
    offset = str(answer.offset)
    end = b""
    async with transport.stream(supervisor_command(record, "tail", "--offset", offset)) as stream:
        async for chunk in stream.chunks():
            end += chunk
            if len(end) > TAIL:  # overlong lines: use the bucket's copy, which can be cut
                return b""
    return end
