"""Leftovers of a stack in zones no longer in use, from earlier attempts or an older stack file."""

from __future__ import annotations

from typing import Any

from tpuctl.engine.resource import Report, Resource
from tpuctl.model.plan import Change

__all__ = ["LeftoverResource"]


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

    async def apply(self, change: Change, report: Report) -> None:
        await self._resource.apply(change, report)
