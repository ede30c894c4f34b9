"""Costs of existing resources: per hour, and since their creation.

The cost so far is age times price, as if charged from the start: less for a node that was stopped
for a while. When a preempted node ended is unknown, so its cost is unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from tpuctl.model.cost.cost import spent
from tpuctl.model.status.inventory import InventoryItem


@dataclass(frozen=True)
class Charge:
    """An item with its cost in US dollars; None if unknown."""

    item: InventoryItem
    per_hour: float | None  # now; 0 if stopped
    so_far: float | None
    hours: float  # since creation
    note: str  # "on demand", "$0.02 per GB per month", "not charged while STOPPED"
    read: str  # the date of the price; empty where none is known


def is_charged(item: InventoryItem) -> bool:
    """Whether the item is charged in its current state."""
    return item.is_billable and not _is_uncharged(item)


def charges_of(items: Iterable[InventoryItem], now: datetime | None = None) -> tuple[Charge, ...]:
    """Charges of all billable items, in the same order."""
    charges = (charge_of(item, now) for item in items)
    return tuple(charge for charge in charges if charge is not None)


def charge_of(item: InventoryItem, now: datetime | None = None) -> Charge | None:
    """The charge of an item; None if it costs nothing itself.

    For a bucket only its rate: its size is not queried.
    """
    line = item.cost
    if line is None:
        return None
    age = ((now or datetime.now(UTC)) - item.created).total_seconds() if item.created else 0.0
    hours = max(0.0, age / 3600)
    if _is_uncharged(item):
        total = 0.0 if item.state in item.kind_class.uncharged_before_states else None
        return Charge(item, 0.0, total, hours, f"not charged while {item.state}", "")
    total = None if item.created is None else spent([line], hours)
    return Charge(item, line.per_hour, total, hours, line.note, line.read)


def _is_uncharged(item: InventoryItem) -> bool:
    return item.state in (
        *item.kind_class.uncharged_before_states,
        *item.kind_class.uncharged_after_states,
    )


def hourly(charges: Iterable[Charge]) -> tuple[float, bool]:
    """The sum of known hourly prices, and whether all are known. Without buckets."""
    prices = [charge.per_hour for charge in charges if charge.item.kind != "bucket"]
    return sum(price for price in prices if price is not None), None not in prices


def so_far(charges: Iterable[Charge]) -> tuple[float, bool]:
    """Like `hourly`, for the cost since creation."""
    sums = [charge.so_far for charge in charges if charge.item.kind != "bucket"]
    return sum(amount for amount in sums if amount is not None), None not in sums
