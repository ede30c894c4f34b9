"""A job's attempts in the bucket: read them, claim the next one, request a stop."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from typing import TypeVar

from pydantic import BaseModel

from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import Conflict, NotFound
from tpuctl.model.jobs.attempt import Attempt, Verdict
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.jobs.queue import JobEnd, JobStart
from tpuctl.model.text.record_parsing import parse_record

M = TypeVar("M", bound=BaseModel)


async def read_attempts(store: ObjectStore, record: JobRecord) -> list[Attempt]:
    """All attempts but the first, in order."""
    objects = await store.list(f"{record.prefix}/attempts/")
    numbers = sorted(filter(None, (attempt_number(info.name, record) for info in objects)))
    read = await asyncio.gather(
        *(
            _read(store, record.at(number).attempt_name, Attempt, number=number)
            for number in numbers
        )
    )
    return [attempt for attempt in read if attempt is not None]


def attempt_number(name: str, record: JobRecord) -> int | None:
    """The attempt number if the object is an attempt record, otherwise None."""
    match = re.fullmatch(
        rf"{re.escape(record.prefix)}/attempts/([1-9]\d{{0,5}})/attempt\.json", name
    )
    return int(match[1]) if match else None


def at_latest_attempt(record: JobRecord, attempts: Iterable[Attempt]) -> JobRecord:
    """The job record as of its last attempt."""
    last = max(attempts, key=lambda attempt: attempt.number, default=None)
    return record if last is None else record.of(last)


async def claim_attempt(store: ObjectStore, record: JobRecord, attempt: Attempt) -> bool:
    """Claim the attempt. Of concurrent callers exactly one gets True."""
    name = record.at(attempt.number).attempt_name
    return await _write_once(store, name, attempt) == attempt


async def claim_start(store: ObjectStore, record: JobRecord, start: JobStart) -> bool:
    """Claim the first attempt of a queued job. Of concurrent callers exactly one gets True."""
    return await _write_once(store, record.start_name, start) == start


async def with_start(store: ObjectStore, record: JobRecord) -> JobRecord:
    """A queued job's record with the machines that it was started on, if it was."""
    start = await _read(store, record.start_name, JobStart)
    return record if start is None else record.started(start)


async def record_end(store: ObjectStore, record: JobRecord, end: JobEnd) -> JobEnd:
    """Record that no further attempt of a queued job will start; the first end recorded wins."""
    return await _write_once(store, record.final_name, end)


async def read_end(store: ObjectStore, record: JobRecord) -> JobEnd | None:
    """How a queued job ended; None while it has not."""
    return await _read(store, record.final_name, JobEnd)


async def record_verdict(
    store: ObjectStore, record: JobRecord, verdict: Verdict | None
) -> Verdict | None:
    """Record why the attempt is retried and return the verdict; the first one recorded wins.

    With None, only read it.
    """
    if verdict is None:
        return await _read(store, record.verdict_name, Verdict)
    return await _write_once(store, record.verdict_name, verdict)


async def request_stop(store: ObjectStore, record: JobRecord, by: str) -> None:
    """Request that no further attempt starts. Checked after an attempt is claimed."""
    text = json.dumps({"at": store.clock.now().isoformat(), "by": by}).encode()
    try:
        await store.put_bytes(record.stop_name, text, if_generation=0)
    except Conflict:
        return  # already requested


async def is_stop_requested(store: ObjectStore, record: JobRecord) -> bool:
    """Whether a stop was requested."""
    return await store.exists(record.stop_name)


async def _write_once(store: ObjectStore, name: str, value: M) -> M:
    """Create the object; return its content, which is the existing one if it already exists."""
    try:
        await store.put_bytes(name, value.model_dump_json(indent=2).encode(), if_generation=0)
    except Conflict:
        existing = await _read(store, name, type(value))
        if existing is None:  # deleted with the bucket in the meantime
            raise
        return existing
    return value


async def read_record(store: ObjectStore, name: str, kind: type[M], **expected: object) -> M:
    """Read a record. Raises NotFound, or Conflict if it cannot be read or is not as expected."""
    return parse_record(kind, await store.get_bytes(name), store.uri(name), **expected)


async def _read(store: ObjectStore, name: str, kind: type[M], **expected: object) -> M | None:
    try:
        return await read_record(store, name, kind, **expected)
    except NotFound:
        return None
