"""Answers about stacks: plans, costs, quota and existing resources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Literal

from tpuctl.model.plan import Change
from tpuctl.view.responses.base import (
    Dollars,
    Hours,
    NullIfEmpty,
    Number,
    Response,
    SmallDollars,
    Timestamp,
    source,
)

if TYPE_CHECKING:
    from tpuctl.model import inventory
    from tpuctl.model.charges import Charge
    from tpuctl.view import orphans

__all__ = ["Cost", "Down", "Orphans", "Plan", "RemainingResource", "Resource", "WrittenFiles"]


class WrittenFiles(Response):
    """The files that were written, relative to the current folder."""

    files: list[Path]


class CostLine(Response):
    item: str
    per_hour: SmallDollars | None
    note: str
    as_of: str = source("read")


class Cost(Response):
    """`complete` is false if a price is unknown."""

    currency: Literal["USD"]
    per_hour: SmallDollars | None
    per_month: SmallDollars | None
    complete: bool = source("is_complete")
    as_of: str = source("read")
    lines: list[CostLine]


class QuotaLine(Response):
    """`limit` and `remaining` are null where the limit is unknown."""

    quota: str = source("limit")
    location: str = source("place")
    unit: NullIfEmpty[str]
    limit: Number | None = source("allowed")
    usage: Number | None = source("used")
    requested: Number | None = source("added")
    remaining: Number | None = source("left")


class Quota(Response):
    limits: list[QuotaLine] = source("lines")
    unavailable: list[str] = source("unread")


class Plan(Response):
    """What `up` would do, or did; `price_per_hour` is for one node, `cost` for the whole stack."""

    stack: str = source("stack.name")
    zone: str = source("stack.zone")
    changes: list[Change] = source("plan.changes")
    price_per_hour: Number | None = source("stack.price.per_hour")
    price_as_of: str | None = source("stack.price.read")
    cost: Cost
    fallback_costs: dict[str, Cost]
    quota: Quota


class Resource(Response):
    """An existing resource."""

    kind: str = source("item.kind")
    name: str = source("item.name")
    zone: NullIfEmpty[str] = source("item.zone")
    state: NullIfEmpty[str] = source("item.state")
    type: NullIfEmpty[str] = source("item.detail")
    size_gb: NullIfEmpty[Number] = source("item.size_gb")
    capacity: str | None = source("item.tpu_capacity")
    created: Timestamp | None = source("item.created")
    age_hours: Hours | None = source("charge.hours")
    per_hour: Dollars | None = source("charge.per_hour")
    cost_so_far: Dollars | None = source("charge.so_far")
    price_note: str | None = source("charge.note")
    price_as_of: NullIfEmpty[str] = source("charge.read")

    @classmethod
    def of(cls, item: inventory.InventoryItem, charge: Charge | None) -> Resource:
        """The cost is null if the item is free."""
        return cls.model_validate(SimpleNamespace(item=item, charge=charge))


class RemainingResource(Response):
    """A resource after `down`: `deleted`, `kept` or `remains`."""

    address: str
    state: str
    reason: str
    billable: bool = source("is_billable")
    bytes: int | None = source("holding.bytes")
    objects: int | None = source("holding.objects")
    count_complete: bool | None = source("holding.is_whole")
    per_month: Dollars | None


class Down(Response):
    remaining: list[RemainingResource]


class OrphanedResource(Resource):
    orphaned: bool = source("is_orphaned")
    reason: str


class OrphanStack(Response):
    stack: str
    in_use: bool = source("is_in_use")
    command: str
    resources: list[OrphanedResource] = source("rows")


class Orphans(Response):
    """Leftover resources of stacks in a project."""

    project: str
    per_hour: Dollars
    complete: bool
    stacks: list[OrphanStack]

    @classmethod
    def of(cls, leftovers: orphans.Orphans, command: Callable[[str], str]) -> Orphans:
        """`command` returns the command to type for a stack."""
        per_hour, is_complete = leftovers.hourly
        return cls(
            project=leftovers.project,
            per_hour=per_hour,
            complete=is_complete,
            stacks=[{**vars(group), "command": command(group.stack)} for group in leftovers.groups],
        )
