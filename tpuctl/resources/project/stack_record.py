"""The stack's record: state that labels cannot hold, in an object of its bucket.

A policy shows grants, but not who made them; downs and requests for a TPU leave no trace in the
cloud. Writes are conditional on the generation that was read, so concurrent changes are never lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from tpuctl.catalog import Api
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import Conflict, Denied, NotFound
from tpuctl.model.capacity.capacity_history import CapacityAttempt, merge_attempts
from tpuctl.model.capacity.forecast import Forecast
from tpuctl.model.stack.stack import Stack
from tpuctl.model.text.names import RECORDS, record_name
from tpuctl.model.text.record_parsing import Count, Moment, Name, require_known_version
from tpuctl.polling import gather_all

VERSION = 1
MAX_CAPACITY_ATTEMPTS = 100


class Grant(BaseModel):
    """A role granted to a member on a resource: `bucket/NAME` or `project/ID`."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    resource: Name
    member: Name
    role: Name
    time: Moment | None = None  # just before it was granted

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the grant, without its time."""
        return (self.resource, self.member, self.role)

    @property
    def pair(self) -> tuple[str, str]:
        """(role, member)."""
        return (self.role, self.member)


class RaceWinner(BaseModel):
    """The place that won the last race, and since when it had its request or nodes."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    zone: Name
    api: Api = "tpu"
    created: Moment


class Contents(BaseModel):
    """The contents of a stack's record. Fields of other versions are preserved."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    version: int = VERSION
    stack: Name
    grants: tuple[Grant, ...] = ()
    down_count: Count = 0  # number of times the stack was deleted
    down_at: Moment | None = None  # when that began for the last time
    capacity: tuple[CapacityAttempt, ...] = ()  # what came of the last requests for its TPU
    forecast: Forecast | None = None  # the last one before its TPU was requested
    race_winner: RaceWinner | None = None
    write_id: Name = ""  # unique for each write, even of the same content

    def with_grants(self, *grants: Grant) -> Self:
        """With these grants, replacing earlier ones with the same key."""
        return self.model_copy(update={"grants": self._without(grants) + grants})

    def with_unlisted(self, *grants: Grant) -> Self:
        """With those of these grants that are not recorded yet."""
        keys = {grant.key for grant in self.grants}
        return self.with_grants(*(grant for grant in grants if grant.key not in keys))

    def without_grants(self, *grants: Grant) -> Self:
        return self.model_copy(update={"grants": self._without(grants)})

    def _without(self, grants: Iterable[Grant]) -> tuple[Grant, ...]:
        keys = {grant.key for grant in grants}
        return tuple(grant for grant in self.grants if grant.key not in keys)

    def with_attempts(
        self, attempts: Iterable[CapacityAttempt], forecast: Forecast | None = None
    ) -> Self:
        """With what came of requests, and the forecast that was made for them, if any."""
        every = merge_attempts(self.capacity, attempts, limit=MAX_CAPACITY_ATTEMPTS)
        return self.model_copy(update={"capacity": every, "forecast": forecast or self.forecast})

    def with_down(self, now: datetime) -> Self:
        """With another `down`, which begins now."""
        return self.model_copy(update={"down_count": self.down_count + 1, "down_at": now})

    def grants_on(self, target: str) -> tuple[Grant, ...]:
        """The recorded grants on one resource."""
        return tuple(grant for grant in self.grants if grant.resource == target)


class Record:
    """Reads and writes the record of a stack in its bucket."""

    def __init__(self, stack: Stack, cloud: Cloud) -> None:
        self.stack = stack
        self.cloud = cloud

    @property
    def uri(self) -> str:
        return f"gs://{self.stack.bucket}/{self.stack.names.record}"

    async def read(self) -> Contents | None:
        """The contents; None without a record or bucket."""
        try:
            return self._parsed(await self._store().get_bytes(self.stack.names.record))
        except NotFound:
            return None

    async def others(self) -> list[Contents | None]:
        """The records of other stacks in the same bucket; empty without a bucket.

        An element is None if this version cannot read the record.
        """
        return await self._others_in(self._store())

    async def others_of_project(self) -> list[Contents | None]:
        """Like `others`, for all buckets of the project and this stack's bucket."""
        client = self.cloud.client("storage")

        def names(**options: Any) -> set[str]:
            return {
                bucket.name for bucket in client.list_buckets(project=self.stack.project, **options)
            }

        async def remembered(bucket: str) -> list[Contents | None]:
            try:
                return await self._others_in(self.cloud.objects(bucket))
            except Denied:
                return [None]

        names_found = await self.cloud.call("list of buckets", names)
        buckets = sorted(names_found | {self.stack.bucket})
        return [
            contents for group in await gather_all(map(remembered, buckets)) for contents in group
        ]

    async def _others_in(self, store: ObjectStore) -> list[Contents | None]:
        async def read(name: str) -> list[Contents | None]:
            try:
                return [_contents(await store.get_bytes(name))]
            except NotFound:  # deleted since listing
                return []

        try:
            objects = await store.list(f"{RECORDS}/")
        except NotFound:
            return []
        names = [info.name for info in objects if info.name != self.stack.names.record]
        return [contents for group in await gather_all(map(read, names)) for contents in group]

    async def count_down(self) -> None:
        """Write that another `down` begins now. Raises NotFound without a bucket."""
        now = self.cloud.server_clock.now()
        await self.update(lambda contents: contents.with_down(now))

    async def update(self, change: Callable[[Contents], Contents]) -> Contents:
        """Apply `change` to the record, creating it if missing; returns the new contents.

        `change` is called again after a concurrent write. Nothing is written if it changes nothing.
        Raises NotFound without a bucket.
        """
        contents = Contents(stack=self.stack.name)

        def changed(text: bytes | None) -> bytes | None:
            nonlocal contents
            before = Contents(stack=self.stack.name) if text is None else self._parsed(text)
            contents = change(before)
            if contents == before:
                return None
            contents = contents.model_copy(update={"write_id": secrets.token_hex(8)})
            return contents.model_dump_json(indent=2).encode()

        await self._store().update(self.stack.names.record, changed, self.cloud.clock)
        return contents

    def _parsed(self, text: bytes) -> Contents:
        try:
            contents = Contents.model_validate_json(text)
        except ValidationError as error:
            raise Conflict(
                "Invalid stack record",
                f"{self.uri}: {error.errors()[0]['msg']}",
                hint="Deleting it leaves the grants it lists in place. If they are no longer "
                "needed:\n"
                f"    gcloud storage rm {self.uri}",
            ) from None
        require_known_version(contents.version, VERSION, self.uri)
        return contents

    def _store(self) -> ObjectStore:
        return self.cloud.objects(self.stack.bucket)


async def read_contents(store: ObjectStore, stack: str) -> Contents | None:
    """The record of a stack by name; None if missing or unreadable."""
    try:
        return _contents(await store.get_bytes(record_name(stack)))
    except NotFound:
        return None


def _contents(text: bytes) -> Contents | None:
    try:
        contents = Contents.model_validate_json(text)
    except ValidationError:
        return None
    return contents if contents.version <= VERSION else None
