"""Long-running operations: persisted when accepted, run in the background, resumed after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tpuctl.emulator.state.delays import remaining
from tpuctl.emulator.state.errors import ApiError, internal
from tpuctl.emulator.state.store import Store

log = logging.getLogger(__name__)

Arguments = dict[str, Any]
_COLUMNS = "name,parent,effect,arguments,started,due,ended,detail,response,error"
_FAULT = "fault"  # key in an operation's arguments: the injected error
_RETENTION_SECONDS = 7 * 24 * 3600.0  # finished operations are deleted after a week


@dataclass(frozen=True)
class Record:
    """An operation as stored."""

    name: str  # full: projects/P/locations/Z/operations/ID
    parent: str  # lists of this parent include it
    effect: str  # "tpu.nodes.create": the Effect that runs it
    arguments: Arguments
    started: float
    due: float
    ended: float | None
    detail: str
    response: bytes | None  # a serialized google.protobuf.Any
    error: bytes | None  # a serialized google.rpc.Status

    @property
    def is_done(self) -> bool:
        return self.ended is not None


@dataclass(frozen=True)
class Effect:
    """What an operation does. Arguments are JSON, since another process may resume it.

    `work` may take any time and must be safe to restart; `finish` changes the store, in one
    transaction with the operation's end, and returns the response; `fail` does the same if `work`
    or `finish` raised ApiError. `metadata` makes the operation's metadata.
    """

    finish: Callable[[Arguments], Any]
    work: Callable[[Arguments, Callable[[str], None]], Awaitable[None]] | None = None
    fail: Callable[[Arguments, ApiError], None] | None = None
    metadata: Callable[[Record], Any] | None = None


class Operations:
    """All long-running operations of the local cloud."""

    def __init__(
        self,
        store: Store,
        find_effect: Callable[[str], Effect],
        take_fault: Callable[[], tuple[float, ApiError | None]] = lambda: (0.0, None),
    ) -> None:
        """`take_fault` returns the effect of injected faults on a new operation: a delay, and an
        error to end with."""
        self._store = store
        self._find_effect = find_effect
        self._take_fault = take_fault
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended: dict[str, asyncio.Event] = {}

    def begin(
        self, parent: str, effect: str, arguments: Arguments, seconds: float, *, name: str = ""
    ) -> Record:
        """Persist and start an operation that ends after at least `seconds`.

        With no delay and no work it is finished when this returns.
        """
        now = time.time()
        delay, error = self._take_fault()
        seconds += delay
        if error is not None:
            arguments = {**arguments, _FAULT: _error_arguments(error)}
        self._store.run("DELETE FROM operations WHERE ended < ?", now - _RETENTION_SECONDS)
        record = Record(
            name=name or f"{parent}/operations/operation-{int(now * 1000)}-{secrets.token_hex(8)}",
            parent=parent,
            effect=effect,
            arguments=arguments,
            started=now,
            due=now + seconds,
            ended=None,
            detail="",
            response=None,
            error=None,
        )
        self._store.run(
            f"INSERT INTO operations ({_COLUMNS}) VALUES (?,?,?,?,?,?,NULL,'',NULL,NULL)",
            record.name,
            parent,
            effect,
            json.dumps(arguments),
            record.started,
            record.due,
        )
        if seconds <= 0 and error is None and self._find_effect(effect).work is None:
            try:
                self._finish(record)
            except ApiError as refusal:  # fails the operation, not the request
                self._end(record, None, refusal)
        else:
            # The task starts on the next loop iteration, after the surrounding transaction.
            self._start(record)
        return self.get(record.name)

    def get(self, name: str) -> Record:
        row = self._store.row(f"SELECT {_COLUMNS} FROM operations WHERE name=?", name)
        if row is None:
            raise ApiError("NOT_FOUND", f"Operation {name!r} was not found.")
        return _record(row)

    def list(self, parent: str) -> list[Record]:
        """Newest first; a parent ending in `locations/-` matches every location."""
        pattern = parent.replace("/locations/-", "/locations/*")
        rows = self._store.rows(
            f"SELECT {_COLUMNS} FROM operations WHERE parent GLOB ? ORDER BY started DESC", pattern
        )
        return [_record(row) for row in rows]

    def pending(self, effect: str) -> Iterable[Record]:
        rows = self._store.rows(
            f"SELECT {_COLUMNS} FROM operations WHERE ended IS NULL AND effect=?", effect
        )
        return [_record(row) for row in rows]

    def forget(self, name: str) -> None:
        """Delete the record of an operation; a running one continues."""
        self.get(name)
        self._store.run("DELETE FROM operations WHERE name=?", name)

    def abort(self, name: str, error: ApiError) -> None:
        """End a pending operation with this error and cancel its work."""
        record = self.get(name)
        if record.is_done:
            return
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
        self._end(record, None, error)

    async def wait(self, name: str, seconds: float) -> Record:
        """The operation when finished, or its current state after `seconds`."""
        record = self.get(name)
        if record.is_done:
            return record
        event = self._ended.setdefault(name, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)
        return self.get(name)

    def message(self, record: Record) -> Any:
        """The google.longrunning.Operation of a record."""
        from google.longrunning import operations_pb2
        from google.protobuf import any_pb2
        from google.rpc import status_pb2

        operation = operations_pb2.Operation(name=record.name, done=record.is_done)
        make_metadata = self._find_effect(record.effect).metadata
        metadata = make_metadata(record) if make_metadata else None
        if metadata is not None:
            operation.metadata.Pack(metadata)
        if record.error is not None:
            operation.error.CopyFrom(status_pb2.Status.FromString(record.error))
        elif record.response is not None:
            operation.response.CopyFrom(any_pb2.Any.FromString(record.response))
        return operation

    def resume(self) -> int:
        """Resume the operations that a previous process left pending; returns their number."""
        rows = self._store.rows(f"SELECT {_COLUMNS} FROM operations WHERE ended IS NULL")
        for row in rows:
            self._start(_record(row))
        return len(rows)

    async def close(self) -> None:
        """Stop all tasks. Pending operations stay pending for the next process."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, record: Record) -> None:
        task = asyncio.get_running_loop().create_task(self._run(record), name=record.name)
        self._tasks[record.name] = task
        task.add_done_callback(lambda _: self._tasks.pop(record.name, None))

    async def _run(self, record: Record) -> None:
        effect = self._find_effect(record.effect)
        try:
            fault = record.arguments.get(_FAULT)
            if fault is not None:
                await asyncio.sleep(remaining(record.started, record.due))
                raise ApiError(**fault)
            if effect.work is not None:
                await effect.work(
                    record.arguments, lambda text: self._set_detail(record.name, text)
                )
            await asyncio.sleep(remaining(record.started, record.due))
            self._finish(record)
        except ApiError as error:
            self._end(record, None, error)
        except Exception as error:
            log.exception("operation %s failed", record.name)
            self._end(record, None, internal(error))

    def _set_detail(self, name: str, text: str) -> None:
        self._store.run("UPDATE operations SET detail=? WHERE name=?", text, name)

    def _finish(self, record: Record) -> None:
        from google.protobuf import any_pb2, empty_pb2

        with self._store.transaction():
            response = self._find_effect(record.effect).finish(record.arguments)
            packed = any_pb2.Any()
            packed.Pack(empty_pb2.Empty() if response is None else response)
            self._end(record, packed.SerializeToString(), None)

    def _end(self, record: Record, response: bytes | None, error: ApiError | None) -> None:
        with self._store.transaction():
            if error is not None:
                fail = self._find_effect(record.effect).fail
                if fail is not None:
                    fail(record.arguments, error)
            self._store.run(
                "UPDATE operations SET ended=?, response=?, error=?, detail='' WHERE name=?",
                time.time(),
                response,
                error.as_status().SerializeToString() if error else None,
                record.name,
            )
        event = self._ended.pop(record.name, None)
        if event is not None:
            event.set()


def _error_arguments(error: ApiError) -> Arguments:
    return {"status": error.status, "message": error.message, "details": list(error.details)}


def _record(row: tuple[Any, ...]) -> Record:
    name, parent, effect, arguments, *rest = row
    return Record(name, parent, effect, json.loads(arguments), *rest)
