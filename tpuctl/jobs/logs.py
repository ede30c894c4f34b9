"""Reads one worker's log, every byte once and in order, from the machine or the bucket.

A byte offset is the only state between connections: after a dropped connection, reading resumes at
the next byte, and if the machine is gone, at the same offset in the bucket's copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from tpuctl.cloud.objects import ObjectInfo
from tpuctl.errors import Conflict, NotFound, RemoteFailed, Unreachable
from tpuctl.jobs.launch import supervisor_command
from tpuctl.model.events import Emit, WarningIssued
from tpuctl.model.jobs.job import JobRecord, WorkerRecord, lost_worker
from tpuctl.model.text.record_parsing import ByteCount, parse_answer, parse_record
from tpuctl.polling import Backoff, Clock, SystemClock, gather_all
from tpuctl.remote.transport import Result, Stream, Transport

NO_SUCH_JOB = 3  # exit code of the supervisor: the machine was recreated
FREED = 4  # exit code of the supervisor: the requested bytes are only in the bucket
RECONNECT = Backoff(initial=0.05, maximum=5.0, multiplier=2.0)
BUCKET_POLLING = Backoff(initial=0.5, maximum=5.0, multiplier=1.5)
GIVE_UP_SECONDS = 300.0
REPORT_SECONDS = 5.0  # without a connection before it is reported
CHUNK_BYTES = 1 << 20
READERS = 16  # of workers' records at the same time


class Store(Protocol):
    """The operations on a bucket that are needed here."""

    async def stat(self, name: str) -> ObjectInfo | None: ...

    async def get_bytes(self, name: str) -> bytes: ...

    async def read_range(self, name: str, start: int, length: int = CHUNK_BYTES) -> bytes: ...

    async def list(self, prefix: str) -> list[ObjectInfo]: ...


class WorkerLog:
    """The log of one worker of a job, from byte `offset` on.

    After `chunks` has ended, `record` is the worker's final record; its state is "lost" if neither
    the machine nor the bucket has one. `is_gone` returns whether the machine no longer exists;
    without it, or while it returns False, an unreachable machine is retried for `give_up_seconds`.
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
        report: Callable[[str], None] = lambda text: None,
        clock: Clock | None = None,
    ) -> None:
        """`report` receives messages about a machine that does not respond."""
        self.job = record
        self.worker = worker
        self.offset = offset
        self.record: WorkerRecord | None = None
        self._transport = transport
        self._store = store
        self._is_gone = is_gone
        self._give_up_seconds = give_up_seconds
        self._report = report
        self._is_connected = False
        self._clock = clock or SystemClock()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The log as it grows, until the worker has ended and all of it was returned."""
        if self._transport is not None:
            async for chunk in self._read_machine(self._transport):
                yield chunk
        if self.record is None and self._store is not None:
            async for chunk in self._read_bucket(self._store):
                yield chunk
        if self.record is None:
            detail = f"worker {self.job.worker_name(self.worker)} is gone and left no final record"
            self.record = lost_worker(self.job, self.worker, detail)

    async def current_chunks(self) -> AsyncIterator[bytes]:
        """The current log: from the machine, otherwise from the bucket's copy."""
        if self._transport is not None:
            result = None
            with suppress(Unreachable):
                while result is None or result.exit_code == FREED:
                    async for piece in self._tail(self._transport):
                        if isinstance(piece, bytes):
                            yield piece
                        else:
                            result = piece
            if result is not None and result.exit_code == 0:
                return
        while self._store is not None and (chunk := await self._read(self._store, CHUNK_BYTES)):
            yield chunk

    async def _read_machine(self, transport: Transport) -> AsyncIterator[bytes]:
        """Read until the worker has ended, or the machine is given up."""
        delays = RECONNECT.delays()
        last_seen = self._clock.now()
        is_reported = False
        while True:
            self._is_connected = False
            try:
                async for piece in self._tail(transport, "--follow"):
                    if isinstance(piece, bytes):
                        is_reported = False
                        delays, last_seen = RECONNECT.delays(), self._clock.now()
                        yield piece
                        continue
                    if piece.exit_code == NO_SUCH_JOB:
                        return
                    if piece.exit_code == 0 and piece.stderr.strip():
                        last = piece.stderr.strip().splitlines()[-1]
                        self.record = parse_worker(self.job, self.worker, last, "the machine")
                        if not self.record.log_uploaded:
                            self._report(
                                f"the end of worker {self.job.worker_name(self.worker)}'s log is "
                                "not in the bucket: it will be deleted with the machine"
                            )
                        return
            except Unreachable as error:
                if self._is_connected:  # there may have been no output for hours
                    last_seen, is_reported = self._clock.now(), False
                elif not is_reported and self._clock.now() - last_seen >= REPORT_SECONDS:
                    is_reported = True
                    self._report(
                        f"{error.diagnostics[0].detail}; retrying for "
                        f"{self._give_up_seconds / 60:.2g} minutes"
                    )
            if await self._should_give_up(self._clock.now() - last_seen):
                return
            await self._clock.sleep(next(delays))

    async def _tail(self, transport: Transport, *options: str) -> AsyncIterator[bytes | Result]:
        """The log from `offset` as far as the machine has it, then the result of the command.

        Bytes that the machine has freed come from the bucket.
        """
        async with self._open(transport, *options) as stream:
            self._is_connected = True
            async for chunk in stream.chunks():
                self.offset += len(chunk)
                yield chunk
            result = await stream.result()
        if result.exit_code == FREED:
            lines, where = result.stderr.splitlines(), f"worker {transport.name}"
            first = parse_answer(_Freed, b"".join(lines[-1:]), where).first
            if first <= self.offset:  # no byte at the offset, and none is freed before it
                raise RemoteFailed(
                    "Unexpected answer of a machine",
                    f"{where}: says that byte {self.offset} is freed, but byte {first} is not",
                    hint=f"Read the bucket's copy:\n"
                    f"    gcloud storage cat gs://{self.job.bucket}/{self.job.log_name(self.worker)}",
                )
            while self.offset < first:
                length = min(CHUNK_BYTES, first - self.offset)
                chunk = b"" if self._store is None else await self._read(self._store, length)
                if not chunk:
                    self._report(
                        f"bytes {self.offset} to {first} of worker "
                        f"{self.job.worker_name(self.worker)}'s log are neither "
                        "on the machine nor in the bucket"
                    )
                    self.offset = first
                    break
                yield chunk
        yield result

    @asynccontextmanager
    async def _open(self, transport: Transport, *options: str) -> AsyncIterator[Stream]:
        """The command that reads the log: the one that started the job, if it is still running."""
        start_stream = transport.take(self.job.folder) if "--follow" in options else None
        if start_stream is None:
            argv = supervisor_command(self.job, "tail", "--offset", str(self.offset), *options)
            async with transport.stream(argv) as stream:
                yield stream
            return
        try:
            start_stream.write(b"%d\n" % self.offset)
            yield start_stream
        finally:
            start_stream.close()

    async def _should_give_up(self, silent_seconds: float) -> bool:
        """Whether to give up a machine that does not respond, and read from the bucket."""
        if silent_seconds >= self._give_up_seconds:
            return True
        try:
            if self._is_gone is not None and await self._is_gone():
                return True
            record = await self._bucket_record(self._store) if self._store else None
        except Unreachable:
            return False
        return record is not None and record.has_ended

    async def _read_bucket(self, store: Store) -> AsyncIterator[bytes]:
        """Read the bucket's copy, which grows until it has the worker's final record too."""
        delays = BUCKET_POLLING.delays()
        last_seen = self._clock.now()
        while True:
            try:
                record = await self._bucket_record(store)  # first: it is uploaded after its log
                while chunk := await self._read(store, CHUNK_BYTES):
                    delays, last_seen = BUCKET_POLLING.delays(), self._clock.now()
                    yield chunk
                if record is not None and record.has_ended:
                    self.record = record
                    return
                if self._transport is not None or (self._is_gone and await self._is_gone()):
                    return
            except Unreachable:
                if self._clock.now() - last_seen >= self._give_up_seconds:
                    raise
            await self._clock.sleep(next(delays))

    async def _read(self, store: Store, length: int) -> bytes:
        """The next bytes of the bucket's copy; none at its end."""
        try:
            chunk = await store.read_range(self.job.log_name(self.worker), self.offset, length)
        except NotFound:
            return b""
        self.offset += len(chunk)
        return chunk

    async def _bucket_record(self, store: Store) -> WorkerRecord | None:
        try:
            text = await store.get_bytes(self.job.record_name(self.worker))
        except NotFound:
            return None
        return _from_bucket(self.job, self.worker, text)


class _Freed(BaseModel):
    """What `supervisor.py tail` answers if it no longer has the requested bytes."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    first: ByteCount


async def worker_records(
    store: Store, job: JobRecord, emit: Emit | None = None
) -> Mapping[int, WorkerRecord]:
    """The latest records of a job's workers in the bucket.

    Raises Conflict if one is damaged; with `emit`, it is reported and left out.
    """
    semaphore = asyncio.Semaphore(READERS)

    async def read(worker: int) -> WorkerRecord | None:
        try:
            async with semaphore:
                text = await store.get_bytes(job.record_name(worker))
        except NotFound:
            return None
        try:
            return _from_bucket(job, worker, text)
        except Conflict as error:
            if emit is None:
                raise
            emit(WarningIssued(error.diagnostics[0]))
            return None

    records = await gather_all(map(read, job.workers))
    return {record.worker: record for record in records if record is not None}


def parse_worker(job: JobRecord, worker: int, text: bytes, where: str) -> WorkerRecord:
    """The record of a worker from its machine or the bucket. Raises Conflict if it is damaged."""
    expected = {"job": job.id, "attempt": job.attempt, "worker": worker}
    name = f"{where}: record of worker {job.worker_name(worker)}"
    return parse_record(WorkerRecord, text, name, **expected)


def _from_bucket(job: JobRecord, worker: int, text: bytes) -> WorkerRecord:
    return parse_worker(job, worker, text, f"gs://{job.bucket}/{job.record_name(worker)}")
