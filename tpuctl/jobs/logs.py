"""One worker's log, every byte once and in order, from wherever it can be had.

The place in the log is a number of bytes, and nothing else is remembered between connections. So
a dropped connection is taken up at the next byte, and when the machine is gone the bucket's copy
goes on where the machine's stopped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol

from tpuctl.cloud.objects import ObjectInfo
from tpuctl.errors import NotFound, Unreachable
from tpuctl.jobs.ship import command
from tpuctl.model.job import JobRecord, WorkerRecord, lost_worker
from tpuctl.remote.transport import Transport
from tpuctl.waiting import Backoff, Clock, SystemClock

__all__ = ["LinePrefixer", "Store", "WorkerLog", "log_so_far", "worker_records"]

NO_SUCH_JOB = 3  # of the supervisor: the machine is another one now
RECONNECT = Backoff(first=0.05, most=5.0, factor=2.0)
BUCKET = Backoff(first=0.5, most=5.0, factor=1.5)
GIVE_UP_SECONDS = 300.0
CHUNK = 1 << 20


class Store(Protocol):
    """What is read of a bucket here."""

    async def stat(self, name: str) -> ObjectInfo | None: ...

    async def get_bytes(self, name: str) -> bytes: ...

    async def read_range(self, name: str, start: int, length: int = CHUNK) -> bytes: ...

    async def list(self, prefix: str) -> list[ObjectInfo]: ...


class WorkerLog:
    """The log of one worker of a job, from byte `offset` on.

    After `chunks` has ended, `record` is how the worker ended; state "lost" when neither the
    machine nor the bucket will ever say. `is_gone` tells whether the machine no longer exists;
    without it, or while it says no, a silent machine is waited for `give_up_seconds`.
    """

    def __init__(
        self,
        record: JobRecord,
        worker: int,
        *,
        transport: Transport | None,
        store: Store | None,
        offset: int = 0,
        is_gone: Callable[[], Awaitable[bool]] | None = None,
        give_up_seconds: float = GIVE_UP_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self.job = record
        self.worker = worker
        self.offset = offset
        self.record: WorkerRecord | None = None
        self._transport = transport
        self._store = store
        self._is_gone = is_gone
        self._give_up_seconds = give_up_seconds
        self._clock = clock or SystemClock()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes as they come, until the worker has ended and all were given."""
        if self._transport is not None:
            async for chunk in self._from_machine(self._transport):
                yield chunk
        if self.record is None and self._store is not None:
            async for chunk in self._from_bucket(self._store):
                yield chunk
        if self.record is None:
            detail = f"worker {self.worker} is gone and left no final record"
            self.record = lost_worker(self.job, self.worker, detail)

    async def _from_machine(self, transport: Transport) -> AsyncIterator[bytes]:
        """Until the worker has ended, or nothing more is to be had from the machine."""
        delays = RECONNECT.delays()
        heard = self._clock.now()
        while True:
            was_connected = False
            try:
                argv = command(self.job, "tail", "--offset", str(self.offset), "--follow")
                async with transport.stream(argv) as stream:
                    was_connected = True
                    async for chunk in stream.chunks():
                        self.offset += len(chunk)
                        delays, heard = RECONNECT.delays(), self._clock.now()
                        yield chunk
                    ended = await stream.result()
                if ended.exit_code == NO_SUCH_JOB:
                    return
                if ended.exit_code == 0 and ended.stderr.strip():
                    last = ended.stderr.strip().splitlines()[-1]
                    self.record = WorkerRecord.model_validate_json(last)
                    return
            except Unreachable:
                if was_connected:  # it may have had nothing to say for hours
                    heard = self._clock.now()
            if await self._is_over(self._clock.now() - heard):
                return
            await self._clock.sleep(next(delays))

    async def _is_over(self, silent_seconds: float) -> bool:
        """Whether to turn from a machine that does not answer to the bucket."""
        if silent_seconds >= self._give_up_seconds:
            return True
        try:
            if self._is_gone is not None and await self._is_gone():
                return True
            record = await self._bucket_record(self._store) if self._store else None
        except Unreachable:
            return False
        return record is not None and record.has_ended

    async def _from_bucket(self, store: Store) -> AsyncIterator[bytes]:
        """From the bucket's copy, which grows until the worker's final record is there too."""
        name = self.job.log_name(self.worker)
        delays = BUCKET.delays()
        heard = self._clock.now()
        while True:
            try:
                record = await self._bucket_record(store)  # first: the log it tells of is complete
                while chunk := await _read(store, name, self.offset):
                    self.offset += len(chunk)
                    delays, heard = BUCKET.delays(), self._clock.now()
                    yield chunk
                if record is not None and record.has_ended:
                    self.record = record
                    return
                if self._transport is not None or (self._is_gone and await self._is_gone()):
                    return
            except Unreachable:
                if self._clock.now() - heard >= self._give_up_seconds:
                    raise
            await self._clock.sleep(next(delays))

    async def _bucket_record(self, store: Store) -> WorkerRecord | None:
        try:
            text = await store.get_bytes(self.job.record_name(self.worker))
        except NotFound:
            return None
        return WorkerRecord.model_validate_json(text)


async def _read(store: Store, name: str, offset: int) -> bytes:
    try:
        return await store.read_range(name, offset, CHUNK)
    except NotFound:
        return b""


async def log_so_far(
    record: JobRecord, worker: int, transport: Transport | None, store: Store
) -> AsyncIterator[bytes]:
    """What a worker has logged until now: from the machine, else from the bucket's copy."""
    offset = 0
    if transport is not None:
        try:
            async with transport.stream(command(record, "tail", "--offset", "0")) as stream:
                async for chunk in stream.chunks():
                    offset += len(chunk)
                    yield chunk
                if (await stream.result()).exit_code == 0:
                    return
        except Unreachable:
            pass
    while True:
        try:
            piece = await store.read_range(record.log_name(worker), offset)
        except NotFound:
            return
        if not piece:
            return
        offset += len(piece)
        yield piece


async def worker_records(store: Store, job: JobRecord) -> Mapping[int, WorkerRecord]:
    """What the workers of a job last said in the bucket."""
    found = {}
    for worker in job.workers:
        try:
            text = await store.get_bytes(job.record_name(worker))
            found[worker] = WorkerRecord.model_validate_json(text)
        except NotFound:
            continue
    return found


class LinePrefixer:
    """Cuts a worker's chunks at line ends and puts the worker's name before each line.

    A carriage return ends a line too, so that progress bars of several workers do not overwrite
    each other's names; `finish` gives what was left without a line end.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """All complete lines of what came so far, prefixed, with their own line ends."""
        data = self._rest + chunk
        # A carriage return at the very end may be half of a line end of two bytes.
        body = data[:-1] if data.endswith(b"\r") else data
        cut = max(body.rfind(b"\n"), body.rfind(b"\r")) + 1
        self._rest = data[cut:]
        return self._prefixed(data[:cut])

    def finish(self) -> bytes:
        rest, self._rest = self._rest, b""
        if not rest:
            return b""
        return self._prefixed(rest if rest.endswith(b"\r") else rest + b"\n")

    def _prefixed(self, data: bytes) -> bytes:
        return b"".join(self._prefix + line for line in data.splitlines(keepends=True))
