"""Resources of stacks: the rows of `status` and `orphans`, and what `down` left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.units import format_duration
from tpuctl.view.columns import Column, Fields, Number
from tpuctl.view.responses.base import (
    Dollars,
    Hours,
    NullIfEmpty,
    Response,
    Timestamp,
    source,
)

if TYPE_CHECKING:
    from tpuctl.model.status import inventory
    from tpuctl.model.status.charges import Charge


def _address(row: Fields) -> str:
    return "/".join(filter(None, (row["kind"], row["zone"], row["name"])))


def _charged_age(row: Fields) -> str:
    """The age of what is charged."""
    is_known = row["created"] is not None and row["age_hours"] is not None
    return format_duration(row["age_hours"] * 3600) if is_known else ""


def _rate(row: Fields) -> Any:
    if row["per_hour"] is not None:
        return row["per_hour"]
    if row["age_hours"] is None:  # it costs nothing itself
        return ""
    return "by size" if row["kind"] == "bucket" else "unknown"


class Resource(Response):
    """An existing resource."""

    kind: str = source("item.kind")
    name: Annotated[str, Column("resource", show=_address)] = source("item.name")
    zone: NullIfEmpty[str] = source("item.zone")
    state: NullIfEmpty[str] = source("item.state")
    type: NullIfEmpty[str] = source("item.detail")
    size_gb: NullIfEmpty[Number] = source("item.size_gb")
    capacity: str | None = source("item.tpu_capacity")
    created: Timestamp | None = source("item.created")
    age_hours: Annotated[Hours | None, Column("age", sort="age", show=_charged_age)] = source(
        "charge.hours"
    )
    per_hour: Annotated[Dollars | None, Column(show=_rate)] = source("charge.per_hour")
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
    cached_bytes: int | None = source("holding.cached_bytes")
    per_month: Dollars | None
