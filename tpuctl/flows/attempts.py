"""A job's attempts as the bucket knows them: read, announced, and given up by whoever stops it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import BaseModel

from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import Conflict, NotFound
from tpuctl.model.attempt import Attempt, Verdict
from tpuctl.model.job import JobRecord

__all__ = [
    "at_latest_attempt",
    "attempt_number",
    "claim_attempt",
    "is_stop_requested",
    "read_attempts",
    "read_record",
    "record_verdict",
    "request_stop",
]

M = TypeVar("M", bound=BaseModel)


async def read_attempts(store: ObjectStore, record: JobRecord) -> list[Attempt]:
    """The second attempt and all after it, in their order."""
    objects = await store.list(f"{record.prefix}/attempts/")
    numbers = sorted(filter(None, (attempt_number(info.name, record) for info in objects)))
    read = await asyncio.gather(
        *(_read(store, record.at(number).attempt_name, Attempt) for number in numbers)
    )
    return [attempt for attempt in read if attempt is not None]


def attempt_number(name: str, record: JobRecord) -> int | None:
    """Which attempt an object of the bucket announces; None where it does something else."""
    match = re.fullmatch(rf"{re.escape(record.prefix)}/attempts/(\d+)/attempt\.json", name)
    return int(match[1]) if match else None


def at_latest_attempt(record: JobRecord, attempts: Iterable[Attempt]) -> JobRecord:
    """The job as its last attempt runs it."""
    last = max(attempts, key=lambda attempt: attempt.number, default=None)
    return record if last is None else record.of(last)


async def claim_attempt(store: ObjectStore, record: JobRecord, attempt: Attempt) -> bool:
    """Claim the attempt; False when somebody else has claimed it. One of several gets True."""
    name = record.at(attempt.number).attempt_name
    return await _write_once(store, name, attempt) == attempt


async def record_verdict(
    store: ObjectStore, record: JobRecord, verdict: Verdict | None
) -> Verdict | None:
    """Why the record's attempt is followed by another: what was decided first stays.

    With None only what others have decided.
    """
    if verdict is None:
        return await _read(store, record.verdict_name, Verdict)
    return await _write_once(store, record.verdict_name, verdict)


async def request_stop(store: ObjectStore, record: JobRecord, by: str) -> None:
    """Have no attempt started any more. Whoever has announced one looks here before it starts."""
    text = json.dumps({"at": datetime.now(UTC).isoformat(), "by": by}).encode()
    try:
        await store.put_bytes(record.stop_name, text, if_generation=0)
    except Conflict:
        return  # somebody wanted it before


async def is_stop_requested(store: ObjectStore, record: JobRecord) -> bool:
    """Whether somebody has wanted no further attempt."""
    return await store.exists(record.stop_name)


async def _write_once(store: ObjectStore, name: str, value: M) -> M:
    """What stands there then: this, or what somebody wrote before."""
    try:
        await store.put_bytes(name, value.model_dump_json(indent=2).encode(), if_generation=0)
    except Conflict:
        existing = await _read(store, name, type(value))
        if existing is None:  # taken away again meanwhile: with the bucket
            raise
        return existing
    return value


async def read_record(store: ObjectStore, name: str, kind: type[M]) -> M:
    """What lies there. Raises NotFound, and Conflict where this version cannot read it."""
    text = await store.get_bytes(name)
    try:
        return kind.model_validate_json(text)
    except ValueError as error:
        raise Conflict(
            "Job record cannot be read",
            store.uri(name),
            hint="A newer tpuctl may have written it: try again with the newest one.",
        ) from error


async def _read(store: ObjectStore, name: str, kind: type[M]) -> M | None:
    try:
        return await read_record(store, name, kind)
    except NotFound:
        return None
