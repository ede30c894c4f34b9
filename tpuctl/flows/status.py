"""`status`: what exists of a stack, and how its jobs fare; seen once, or again and again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tpuctl.cloud.objects import ObjectInfo, ObjectStore
from tpuctl.errors import NotFound, TpuctlError
from tpuctl.flows.context import Context
from tpuctl.flows.inventory import look
from tpuctl.flows.jobs import considered, load
from tpuctl.jobs.launch import command
from tpuctl.model.inventory import with_requests
from tpuctl.model.job import JobRecord, JobStatus, WorkerRecord, job_status
from tpuctl.model.names import JOBS
from tpuctl.model.progress import LINES, TAIL, Progress, progress_of
from tpuctl.model.snapshot import JobNow, Moment, StackStatus

if TYPE_CHECKING:
    from tpuctl.remote.ssh import SshTransport

__all__ = ["JobWatch", "moment", "status", "watch"]

RECENT = 8  # jobs, the latest, among which the running ones are looked for
READERS = 16
ASK_SECONDS = 5.0  # that a machine may take to say how far a job is
SHUN_SECONDS = 60.0  # that one which did not is left alone


async def status(context: Context) -> StackStatus:
    """What exists, asked of the cloud. Raises NotFound where not even a stack file is there."""
    stack = context.stack
    found = with_requests(
        await look(
            context.cloud,
            stack.project,
            stack=stack.name,
            of=lambda kind: kind.is_billable,
            must_exist=not context.has_file,
        ),
        stack.file.tpu.capacity if context.has_file else None,
    )
    buckets = [one.name for one in found if one.kind == "bucket"]
    return StackStatus(
        stack,
        tuple(one.node for one in found if one.node is not None),
        next(iter(buckets), None),
        tuple(one for one in found if one.node is None and one.kind != "bucket"),
        tuple(found),
    )


async def moment(context: Context) -> Moment:
    """The stack and its jobs as they are now, asked of the cloud and the bucket."""
    return await _StackWatch(context, reaches_machines=False).look()


async def watch(context: Context, seconds: float) -> AsyncIterator[Moment]:
    """The same every so many seconds, without an end, with news from the machines themselves.

    Raises what keeps the first look from telling anything; later problems are told with what
    was seen last.
    """
    watching = _StackWatch(context, reaches_machines=context.has_file)
    try:
        while True:
            yield await watching.look()
            await asyncio.sleep(seconds)
    finally:
        await watching.close()


class _StackWatch:
    """Looks, and remembers what it saw for when nothing can be seen."""

    def __init__(self, context: Context, *, reaches_machines: bool) -> None:
        self._context = context
        self._reaches_machines = reaches_machines
        self._jobs: JobWatch | None = None
        self._last: Moment | None = None

    async def look(self) -> Moment:
        last = self._last
        jobs, problem = last.jobs if last is not None else (), None
        try:
            seen = await status(self._context)
        except TpuctlError as error:
            if last is None:
                raise
            seen, problem = last.status, error.diagnostics[0]
        else:
            try:
                jobs = await self._look_at_jobs(seen.bucket)
            except TpuctlError as error:
                problem = error.diagnostics[0]
        self._last = Moment(datetime.now(UTC), seen, jobs, problem)
        return self._last

    async def _look_at_jobs(self, bucket: str | None) -> tuple[JobNow, ...]:
        if bucket is None:
            return ()
        if self._jobs is None:
            store = ObjectStore(self._context.cloud.client("storage"), bucket)
            self._jobs = JobWatch(store, self._context if self._reaches_machines else None)
        return tuple(await self._jobs.look())

    async def close(self) -> None:
        if self._jobs is not None:
            await self._jobs.close()


class JobWatch:
    """Looks at a stack's jobs; what cannot have changed is not read again.

    With the `context` of its stack the log's end is asked of the machine itself, else it is the
    bucket's copy, some seconds old. A machine that does not answer costs nothing but that.
    """

    def __init__(self, store: ObjectStore, context: Context | None = None) -> None:
        self._store = store
        self._over: set[str] = set()
        self._records: dict[str, tuple[int, WorkerRecord]] = {}  # by name, with the generation
        self._progress: dict[str, tuple[int, Progress]] = {}
        self._machine = _Machine(context)

    async def look(self) -> list[JobNow]:
        """The latest job, and before it those that run; none where there is no bucket."""
        try:
            ids = sorted(await self._store.folders(f"{JOBS}/"))[-RECENT:]
        except NotFound:
            return []
        wanted = [one for one in ids if one not in self._over or one == ids[-1]]
        found = await asyncio.gather(*(self._job(one) for one in wanted))
        jobs = [one for one in found if one is not None]
        self._over |= {one.record.id for one in jobs if one.status.exit_code is not None}
        return [one for one in jobs[:-1] if one.status.exit_code is None] + jobs[-1:]

    async def close(self) -> None:
        await self._machine.close()

    async def _job(self, job: str) -> JobNow | None:
        try:
            record = await load(self._store, job)
        except NotFound:  # a folder of that name, without a job
            return None
        there = {one.name: one for one in await self._store.list(f"{record.attempt_prefix}/")}
        workers = await self._workers(record, there)
        state = await considered(self._store, record, job_status(record, workers))
        log = there.get(record.log_name(record.workers[0]))
        return JobNow(
            record,
            state,
            workers,
            await self._progress_of(record, state, log),
            log.updated if log is not None else None,
        )

    async def _workers(
        self, record: JobRecord, there: Mapping[str, ObjectInfo]
    ) -> dict[int, WorkerRecord]:
        turn = asyncio.Semaphore(READERS)

        async def one(worker: int) -> WorkerRecord | None:
            info = there.get(record.record_name(worker))
            if info is None:
                return None
            generation, known = self._records.get(info.name, (0, None))
            if known is None or generation != info.generation:
                async with turn:
                    with suppress(NotFound):
                        text = await self._store.get_bytes(info.name)
                        known = WorkerRecord.model_validate_json(text)
                        self._records[info.name] = info.generation, known
            return known

        found = await asyncio.gather(*(one(worker) for worker in record.workers))
        return {one.worker: one for one in found if one is not None}

    async def _progress_of(
        self, record: JobRecord, status: JobStatus, log: ObjectInfo | None
    ) -> Progress:
        if status.exit_code is None and (end := await self._machine.log_end(record)):
            return progress_of(end)
        if log is None:
            return Progress()
        generation, known = self._progress.get(log.name, (0, Progress()))
        if generation != log.generation:
            with suppress(NotFound):
                begin = max(0, log.size - TAIL)
                known = progress_of(await self._store.read_range(log.name, begin, TAIL))
                self._progress[log.name] = log.generation, known
        return known


class _Machine:
    """The first worker of a job, asked over a connection that is made beside everything else."""

    def __init__(self, context: Context | None) -> None:
        self._context = context
        self._transports: Mapping[int, SshTransport] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._asked_at = -SHUN_SECONDS

    async def log_end(self, record: JobRecord) -> bytes:
        """The last lines of the job's log; nothing where they are not to be had at once."""
        worker = record.workers[0]
        transport = self._transports.get(worker)
        if transport is None:
            self._connect(worker)
            return b""
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await _log_end(record, transport)
        except (TpuctlError, TimeoutError, ValueError):
            await self._let_go()
            return b""

    def _connect(self, worker: int) -> None:
        loop = asyncio.get_running_loop()
        if self._context is None or loop.time() - self._asked_at < SHUN_SECONDS:
            return
        self._asked_at = loop.time()
        self._connecting = loop.create_task(self._reached(self._context, worker))

    async def _reached(self, context: Context, worker: int) -> None:
        from tpuctl.flows.workers import transports

        with suppress(TpuctlError):
            found = await transports(context)
            if worker in found:
                await found[worker].connect()
                self._transports = found

    async def _let_go(self) -> None:
        reached, self._transports = self._transports, {}
        await asyncio.gather(*(one.close() for one in reached.values()), return_exceptions=True)

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        await self._let_go()


async def _log_end(record: JobRecord, transport: SshTransport) -> bytes:
    where = await transport.run(command(record, "place", "--lines", str(LINES)))
    if where.exit_code != 0:
        return b""
    offset = str(json.loads(where.stdout)["offset"])
    end = b""
    async with transport.stream(command(record, "tail", "--offset", offset)) as stream:
        async for chunk in stream.chunks():
            end += chunk
            if len(end) > TAIL:  # lines without an end: the bucket's copy can be cut
                return b""
    return end
