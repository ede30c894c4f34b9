"""What a stack, or all of a project, have spent, by the periods in which they had machines: a
ledger in a bucket.

`jobs/shipped/watchdog/watchdog.py` adds and sums the same periods; a test compares both.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from tpuctl.model.text.record_parsing import Count, Moment, Name
from tpuctl.units import dollars

VERSION = 1
TPU, CONTROLLER, DISKS = "tpu", "controller", "disks"  # items that are charged together
# Machines report once a minute. When they stop, they may still exist for a while.
SILENCE = timedelta(minutes=5)
HOUR = timedelta(hours=1)
Rate = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


@dataclass(frozen=True)
class Spent:
    """What was spent before: US dollars, and hours with a TPU."""

    cost: float = 0.0
    hours: float = 0.0
    since: datetime | None = None  # when `up --new-limits` began a new count
    month: float = 0.0  # US dollars of all stacks of the project, this month


NOTHING_SPENT = Spent()


class Period(BaseModel):
    """The life of an item: at a price, from its creation on."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    item: Name
    zone: Name
    stack: Name
    user: Name = ""
    started: Moment
    per_hour: Rate
    last_report: Moment | None = None  # last report of its machines; None: it reports nothing
    ended: Moment | None = None

    @property
    def key(self) -> tuple[str, str, str, datetime]:
        return (self.stack, self.item, self.zone, self.started)

    def end(self, now: datetime) -> datetime:
        """Until when it counts. Without an end, or a report, it counts on."""
        if self.ended is not None:
            return min(now, self.ended)
        return now if self.last_report is None else min(now, self.last_report + SILENCE)

    def hours(self, now: datetime, since: datetime | None) -> float:
        """How long it was charged since a time."""
        start = self.started if since is None else max(self.started, since)
        return max(0.0, (self.end(now) - start) / HOUR)


class Ledger(BaseModel):
    """The periods of a stack since its first `up`, or of all stacks of a project."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    version: Count = VERSION
    since: Moment | None = None  # what was before does not count
    periods: tuple[Period, ...] = ()

    @property
    def begin(self) -> datetime | None:
        """From when it counts."""
        return self.since or min((period.started for period in self.periods), default=None)

    def costs_of_month(self, now: datetime) -> dict[tuple[str, str], float]:
        """US dollars since the first of the month, by stack and user, the highest first."""
        begin = month_start(now)
        costs: dict[tuple[str, str], float] = {}
        for period in self.periods:
            cost = period.per_hour * period.hours(now, begin)
            if cost:
                owner = (period.stack, period.user)
                costs[owner] = costs.get(owner, 0.0) + cost
        return dict(sorted(costs.items(), key=lambda entry: -entry[1]))

    def spent(self, now: datetime, *, has_tpu: bool = False) -> Spent:
        """The sum; `has_tpu`: without the TPU that exists."""
        periods = [
            period
            for period in self.periods
            if not (has_tpu and period.item == TPU and period.end(now) == now)
        ]
        hours = [period.hours(now, self.since) for period in periods]
        cost = sum(period.per_hour * count for period, count in zip(periods, hours, strict=True))
        with_tpu = (
            count for period, count in zip(periods, hours, strict=True) if period.item == TPU
        )
        return Spent(cost, sum(with_tpu), self.since)

    def closed(self, stack: str, now: datetime) -> Self:
        """With the end of everything of a stack."""
        periods = tuple(
            period.model_copy(update={"ended": period.end(now)})
            if period.stack == stack
            else period
            for period in self.periods
        )
        return self.model_copy(update={"periods": periods})

    def with_period(self, period: Period) -> Self:
        """With a period, which its machines may have reported."""
        others = tuple(other for other in self.periods if other.key != period.key)
        return self.model_copy(update={"periods": (*others, period)})

    def opened(self, period: Period) -> Self:
        """With a period, unless one of its item in its zone is open."""
        is_open = any(
            other.ended is None and other.key[:-1] == period.key[:-1] for other in self.periods
        )
        periods = self.periods if is_open else (*self.periods, period)
        return self.model_copy(update={"periods": periods})

    def restarted(self, now: datetime) -> Self:
        """With nothing spent yet; only what exists counts on."""
        periods = tuple(period for period in self.periods if period.ended is None)
        return self.model_copy(update={"since": now, "periods": periods})


def month_start(now: datetime) -> datetime:
    """The first moment of a month, in UTC, as on machines."""
    return now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


@dataclass(frozen=True)
class Share:
    """What a stack costs in a month, by the user who created its machines."""

    stack: str
    user: str
    cost: float


@dataclass(frozen=True)
class BudgetUse:
    """What was spent of a month's budget of a project."""

    budget: float
    month: datetime  # its beginning
    shares: tuple[Share, ...]

    @classmethod
    def of(cls, ledger: Ledger, budget: float, now: datetime) -> Self:
        """What the ledger of a project's stacks says."""
        costs = ledger.costs_of_month(now).items()
        return cls(budget, month_start(now), tuple(Share(*owner, cost) for owner, cost in costs))

    @property
    def cost(self) -> float:
        return sum(share.cost for share in self.shares)

    @property
    def is_used_up(self) -> bool:
        return self.cost >= self.budget

    def __str__(self) -> str:
        """`$300.20 of $300.00 in 2026-11: bert (anna) $200.00, gpt (ben) $100.20`."""
        shares = ", ".join(
            f"{share.stack}{f' ({share.user})' if share.user else ''} {dollars(share.cost)}"
            for share in self.shares
        )
        text = f"{dollars(self.cost)} of {dollars(self.budget)} in {self.month:%Y-%m}"
        return f"{text}: {shares}" if shares else text


@dataclass(frozen=True)
class Spending:
    """What was spent of a stack's limits."""

    cost: float  # US dollars
    hours: float  # with a TPU
    max_cost: float | None
    max_hours: float | None
    since: datetime | None  # None: nothing was spent yet

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left."""
        limits = ((self.cost, self.max_cost), (self.hours, self.max_hours))
        return any(limit is not None and spent >= limit for spent, limit in limits)

    def __str__(self) -> str:
        """`$12.40 of $40.00, 3.2 of 12 hours, since 2026-11-02 10:00 UTC`."""
        cost = "" if self.max_cost is None else f"{dollars(self.cost)} of {dollars(self.max_cost)}"
        hours = "" if self.max_hours is None else f"{self.hours:.3g} of {self.max_hours:g} hours"
        since = "" if self.since is None else f"since {self.since:%Y-%m-%d %H:%M} UTC"
        return ", ".join(filter(None, (cost, hours, since)))
