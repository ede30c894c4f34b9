"""Budgets in US dollars: `20/day`, `5/8h`, or a plain amount."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tpuctl.catalog import HOURS_PER_MONTH
from tpuctl.units import dollars

FORMS = "AMOUNT/PERIOD in US dollars, such as 20/day, 5/8h or 300/month; or AMOUNT, such as 50"
HOURS = {"hour": 1.0, "day": 24.0, "week": 168.0, "month": float(HOURS_PER_MONTH)}
SHORT = {"h": "hour", "d": "day", "w": "week"}
SUM = re.compile(r"\$?(\d+(?:\.\d+)?|\.\d+)")
TIME = re.compile(r"(\d+(?:\.\d+)?|\.\d+)?([a-z]+)")


@dataclass(frozen=True)
class Budget:
    """An amount, and the number of hours it must last, if given."""

    sum: float
    hours: float | None = None
    period: str = ""  # as typed: "day", "8h"

    @property
    def per_hour(self) -> float | None:
        return None if self.hours is None else self.sum / self.hours

    def allows(self, per_hour: float) -> bool:
        """Whether it covers the whole period; always true without a period."""
        return self.hours is None or per_hour * self.hours <= self.sum * (1 + 1e-9)

    def hours_of(self, per_hour: float) -> float:
        """How many hours the amount lasts."""
        return self.sum / per_hour

    @property
    def is_named(self) -> bool:
        """Whether the period is an hour, a day, a week or a month."""
        return self.period in HOURS

    @property
    def amount(self) -> str:
        """The formatted amount, without the period."""
        return dollars(self.sum)

    @property
    def expression(self) -> str:
        """The budget as typed on the command line."""
        return f"{self.sum:g}" + (f"/{self.period}" if self.period else "")

    def __str__(self) -> str:
        return f"{dollars(self.sum)} {self.period_text}".rstrip()

    @property
    def period_text(self) -> str:
        """The period in words: `a day`, `an hour`, `for 8h`; empty without a period."""
        if not self.is_named:
            return f"for {self.period}" if self.period else ""
        return f"{'an' if self.period == 'hour' else 'a'} {self.period}"


def parse_budget(text: str) -> Budget | None:
    """Parse a budget; None if it is invalid, or the amount or period is zero."""
    amount, slash, time = text.strip().lower().replace(" ", "").partition("/")
    match = SUM.fullmatch(amount)
    if match is None or not float(match[1]):
        return None
    if not slash:
        return Budget(float(match[1]))
    length = TIME.fullmatch(time)
    unit = length[2] if length is not None else ""
    unit_hours = HOURS.get(SHORT.get(unit, unit.removesuffix("s")))
    if length is None or unit_hours is None or (length[1] and not float(length[1])):
        return None
    if not length[1]:
        return Budget(float(match[1]), unit_hours, SHORT.get(unit, unit.removesuffix("s")))
    return Budget(float(match[1]), float(length[1]) * unit_hours, time)
