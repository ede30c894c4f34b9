"""What a stack has in a zone that is not in use: left by an earlier try, or by an older file."""

from __future__ import annotations

from typing import Any

from tpuctl.engine.resource import Report, Resource
from tpuctl.model.plan import Change

__all__ = ["LeftoverResource"]


class LeftoverResource:
    """A resource that `up` takes away as `down` does. Its address includes its place.

    `after` are addresses as they are in the plan: those of the same place include it, too.
    Without it, it follows what the resource does.
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

    async def apply(self, change: Change, report: Report) -> None:
        await self._resource.apply(change, report)
