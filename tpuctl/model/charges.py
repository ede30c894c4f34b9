"""What the things that exist cost: an hour now, and since they were made.

A thing's age times its price is what it cost so far, as if it had been charged from the start:
a node that was stopped for a while cost less. When one was preempted nobody can be asked any
more, so that its cost is unknown, never nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from tpuctl.catalog import (
    accelerator_type,
    address_price,
    machine_price,
    machine_type,
    node_price,
    region_of,
    storage_price,
)
from tpuctl.model.cost import disk_cost
from tpuctl.model.inventory import Found

__all__ = ["Charge", "charge_of", "charges_of", "hourly", "is_charged", "so_far"]

TPU_KINDS = ("node", "tpu")
# Charged while READY, idle or not (cloud.google.com/tpu/docs, "Pricing"); states on the way
# there and after the end are not. What is unclear counts as charged.
NOT_YET = {
    **dict.fromkeys(TPU_KINDS, ("CREATING",)),
    "controller": ("PENDING", "PROVISIONING", "STAGING"),
}
NO_MORE = {
    **dict.fromkeys(TPU_KINDS, ("PREEMPTED", "STOPPED", "TERMINATED", "HIDDEN")),
    "controller": ("STOPPED", "SUSPENDED", "TERMINATED"),
}


@dataclass(frozen=True)
class Charge:
    """One thing with its cost in US dollars; None where it is unknown."""

    found: Found
    per_hour: float | None  # now: 0 for what is stopped
    so_far: float | None
    hours: float  # since it was made
    note: str  # "on demand", "$0.02 a GB and month", "not charged while STOPPED"
    read: str  # the date of the price; empty where none is known


def is_charged(found: Found) -> bool:
    """Whether it costs money as it is: what is stopped or preempted does not."""
    ended = (*NOT_YET.get(found.kind, ()), *NO_MORE.get(found.kind, ()))
    return found.is_billable and found.state not in ended


def charges_of(found: Iterable[Found], now: datetime | None = None) -> tuple[Charge, ...]:
    """Of everything that can be charged, in the same order."""
    return tuple(charge_of(one, now) for one in found if one.is_billable)


def charge_of(found: Found, now: datetime | None = None) -> Charge:
    """Of one thing. A bucket's depends on what it holds, which is not asked: only its rate."""
    age = ((now or datetime.now(UTC)) - found.created).total_seconds() if found.created else 0.0
    hours = max(0.0, age / 3600)
    if found.state in NOT_YET.get(found.kind, ()):
        return Charge(found, 0.0, 0.0, hours, f"not charged while {found.state}", "")
    if found.state in NO_MORE.get(found.kind, ()):
        return Charge(found, 0.0, None, hours, f"not charged while {found.state}", "")
    per_hour, note, read = _PRICES[found.kind](found) if found.kind in _PRICES else UNKNOWN
    total = None if per_hour is None or found.created is None else per_hour * hours
    return Charge(found, per_hour, total, hours, note, read)


def hourly(charges: Iterable[Charge]) -> tuple[float, bool]:
    """The sum of what is known, and whether all of it is. Buckets stand apart."""
    prices = [one.per_hour for one in charges if one.found.kind != "bucket"]
    return sum(price for price in prices if price is not None), None not in prices


def so_far(charges: Iterable[Charge]) -> tuple[float, bool]:
    """Like `hourly`, since each thing was made."""
    sums = [one.so_far for one in charges if one.found.kind != "bucket"]
    return sum(one for one in sums if one is not None), None not in sums


_Price = tuple[float | None, str, str]
UNKNOWN: _Price = (None, "no price is published", "")


def _node(found: Found) -> _Price:
    known = accelerator_type(found.detail)
    price = node_price(known, found.zone, capacity=found.capacity) if known else None
    if price is None:
        return UNKNOWN
    return _with_addresses(found, price.per_hour, price.kind, price.read)


def _controller(found: Found) -> _Price:
    known = machine_type(found.detail)
    spot = found.capacity in ("spot", "preemptible")
    price = machine_price(known, region_of(found.zone), spot=spot) if known else None
    if price is None:
        return UNKNOWN
    return _with_addresses(found, price.per_hour, price.kind, price.read)


def _with_addresses(found: Found, per_hour: float, note: str, read: str) -> _Price:
    count = found.external_addresses
    if not count:
        return per_hour, note, read
    each = address_price(spot=found.capacity in ("spot", "preemptible"))
    several = "its address" if count == 1 else f"its {count} addresses"
    return per_hour + count * each.per_hour, f"{note}, with {several}", read


def _disk(found: Found) -> _Price:
    line = disk_cost(found.detail, found.size_gb, found.zone)
    return line.per_hour, line.note, line.read


def _address(found: Found) -> _Price:
    price = address_price()
    return price.per_hour, "in use", price.read


def _bucket(found: Found) -> _Price:
    rate = storage_price(found.detail)
    return (None, f"{rate} of what it holds", rate.read) if rate is not None else UNKNOWN


_PRICES = {
    "node": _node,
    "tpu": _node,
    "controller": _controller,
    "disk": _disk,
    "address": _address,
    "bucket": _bucket,
}
