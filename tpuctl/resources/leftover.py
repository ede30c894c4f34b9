"""What `down` deletes beside the stack's resources as they are: leftovers in zones no longer used,
from earlier attempts or an older stack file, and resources that cannot be read."""

from __future__ import annotations

from typing import Any

from tpuctl.engine.resource import Report, Resource
from tpuctl.errors import TpuctlError
from tpuctl.model.plan import Action, Change


class LeftoverResource:
    """A resource that `up` deletes, as `down` does. Its address includes its location.

    `after` are addresses in the plan, with their location if it is the same; by default the
    resource's own.
    """

    def __init__(
        self, resource: Resource, address: str, after: frozenset[str] | None = None
    ) -> None:
        self._resource = resource
        self.address = address
        self.after = resource.after if after is None else after

    @property
    def is_billable(self) -> bool:
        return self._resource.is_billable

    async def observe(self) -> Any | None:
        return await self._resource.observe()

    def diff(self, observed: Any | None) -> Change:
        return self.removal(observed)

    def removal(self, observed: Any | None) -> Change:
        change = self._resource.removal(observed)
        return Change(self.address, change.action, change.because, change.fields)

    async def revised(self, change: Change) -> Change:
        return change

    async def apply(self, change: Change, report: Report) -> None:
        await self._resource.apply(change, report)


class UnreadResource(LeftoverResource):
    """A resource whose state could not be read. It is deleted if a listing shows that it exists and
    belongs to the stack; otherwise its step fails with the error of reading it."""

    def __init__(self, resource: Resource, error: TpuctlError, *, is_listed: bool) -> None:
        super().__init__(resource, resource.address)
        self._error = error
        self._is_listed = is_listed

    def removal(self, observed: Any | None) -> Change:
        if observed is not None:
            return super().removal(observed)
        because = "listed as part of the stack" if self._is_listed else "its state cannot be read"
        return Change(self.address, Action.DELETE, because)

    async def apply(self, change: Change, report: Report) -> None:
        if not self._is_listed:
            raise self._error
        await super().apply(change, report)
