"""Node prices with their date."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tpuctl.catalog.tpu import AcceleratorType, data, read_date, region_of
from tpuctl.units import dollars

__all__ = ["HOURS_PER_MONTH", "Capacity", "Price", "Rate", "node_price"]

Capacity = Literal["on-demand", "spot", "preemptible", "reserved", "flex-start"]

HOURS_PER_MONTH = 730
"""How Google converts between hours and months: 365 days / 12."""

FLOATING = ("spot", "preemptible")
KINDS: dict[str, str] = {
    "on-demand": "on demand",
    "spot": "spot, floats",
    "preemptible": "preemptible, floats",
    "reserved": "reserved, at most",
    "flex-start": "flex-start",
}


@dataclass(frozen=True)
class Price:
    """US dollars per hour for a whole node or machine, with the date of the price list."""

    per_hour: float
    read: str
    capacity: Capacity = "on-demand"

    @property
    def is_spot(self) -> bool:
        return self.capacity in FLOATING

    @property
    def kind(self) -> str:
        """The capacity in words, with a remark on its price."""
        return KINDS[self.capacity]

    def __mul__(self, count: int) -> Price:
        """The price of several nodes or machines."""
        return replace(self, per_hour=self.per_hour * count)

    def __str__(self) -> str:
        return f"{dollars(self.per_hour)}/h ({self.kind}, prices of {self.read})"


@dataclass(frozen=True)
class Rate:
    """US dollars per unit: `$0.02 per GB and month`. A GB is 2**30 bytes."""

    amount: float
    per: str
    read: str
    is_general: bool = False  # one figure for all regions, as no list by region is public

    def __str__(self) -> str:
        return f"{dollars(self.amount)} per {self.per}"


def node_price(
    accelerator: AcceleratorType, zone: str, *, spot: bool = False, capacity: Capacity = "on-demand"
) -> Price | None:
    """The price of one node of this type in this zone; None if none is published.

    It is the same at both APIs: each generation is billed by one SKU per region.
    `spot=True` is short for `capacity="spot"`. Preemptible nodes cost the same as spot nodes.
    Reserved nodes get the on-demand price: a commitment may cost less, never more
    (docs.cloud.google.com/tpu/docs/consumption-options).
    """
    capacity = "spot" if spot else capacity
    if capacity == "flex-start":
        return _flex_start_price(accelerator, zone)
    row = _row(accelerator, zone)
    per_chip = row[1 if capacity in FLOATING else 0] if row else 0
    if not per_chip:
        return None
    return Price(per_chip * accelerator.chips, read_date(), capacity)


def _row(accelerator: AcceleratorType, zone: str) -> list[float] | None:
    """Of the zone; where only Compute Engine offers the type, of another zone in the region."""
    rows: dict[str, list[float]] = data()["prices"][accelerator.price_class]
    if zone not in accelerator.compute_zones:
        return rows.get(zone)
    region = region_of(zone)
    return next((row for other, row in rows.items() if region_of(other) == region), None)


def _flex_start_price(accelerator: AcceleratorType, zone: str) -> Price | None:
    table = data()["flex_start"]
    per_chip = table["prices"].get(accelerator.price_class, {}).get(region_of(zone))
    if not per_chip or zone not in (*accelerator.zones, *accelerator.compute_zones):
        return None
    return Price(per_chip * accelerator.chips, str(table["read"]), "flex-start")
