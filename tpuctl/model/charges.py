"""What the things that exist cost: an hour now, and since they were made.

A thing's age times its price is what it cost so far, as if it had been charged from the start:
a node that was stopped for a while cost less. When one was preempted nobody can be asked any
more, so that its cost is unknown, never nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from tpuctl.model.cost import spent
from tpuctl.model.inventory import Found

__all__ = ["Charge", "charge_of", "charges_of", "hourly", "is_charged", "so_far"]


@dataclass(frozen=True)
class Charge:
    """One thing with its cost in US dollars; None where it is unknown."""

    found: Found
    per_hour: float | None  # now: 0 for what is stopped
    so_far: float | None
    hours: float  # since it was made
    note: str  # "on demand", "$0.02 per GB per month", "not charged while STOPPED"
    read: str  # the date of the price; empty where none is known


def is_charged(found: Found) -> bool:
    """Whether it costs money as it is: what is stopped or preempted does not."""
    return found.is_billable and not _is_uncharged(found)


def charges_of(found: Iterable[Found], now: datetime | None = None) -> tuple[Charge, ...]:
    """Of everything that can be charged, in the same order."""
    charges = (charge_of(one, now) for one in found)
    return tuple(charge for charge in charges if charge is not None)


def charge_of(found: Found, now: datetime | None = None) -> Charge | None:
    """Of one thing; None where it costs nothing itself.

    A bucket's depends on what it holds, which is not asked: only its rate.
    """
    line = found.cost
    if line is None:
        return None
    age = ((now or datetime.now(UTC)) - found.created).total_seconds() if found.created else 0.0
    hours = max(0.0, age / 3600)
    if _is_uncharged(found):
        total = 0.0 if found.state in found.of.charged_later else None
        return Charge(found, 0.0, total, hours, f"not charged while {found.state}", "")
    total = None if found.created is None else spent([line], hours)
    return Charge(found, line.per_hour, total, hours, line.note, line.read)


def _is_uncharged(found: Found) -> bool:
    return found.state in (*found.of.charged_later, *found.of.charged_no_more)


def hourly(charges: Iterable[Charge]) -> tuple[float, bool]:
    """The sum of what is known, and whether all of it is. Buckets stand apart."""
    prices = [one.per_hour for one in charges if one.found.kind != "bucket"]
    return sum(price for price in prices if price is not None), None not in prices


def so_far(charges: Iterable[Charge]) -> tuple[float, bool]:
    """Like `hourly`, since each thing was made."""
    sums = [one.so_far for one in charges if one.found.kind != "bucket"]
    return sum(one for one in sums if one is not None), None not in sums
