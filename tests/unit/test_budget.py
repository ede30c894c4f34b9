"""Budgets, and the nodes they allow."""

from __future__ import annotations

import pytest

from tpuctl.catalog import HOURS_PER_MONTH
from tpuctl.model.cost.budget import parse_budget


@pytest.mark.parametrize(
    ("text", "amount", "hours", "formatted"),
    [
        ("20/day", 20, 24, "$20.00 a day"),
        ("$20/day", 20, 24, "$20.00 a day"),
        ("20 / d", 20, 24, "$20.00 a day"),
        ("5/8h", 5, 8, "$5.00 for 8h"),
        ("2.5/h", 2.5, 1, "$2.50 a hour"),
        ("100/2weeks", 100, 336, "$100.00 for 2weeks"),
        ("300/Month", 300, HOURS_PER_MONTH, "$300.00 a month"),
        (".5/90h", 0.5, 90, "$0.50 for 90h"),
        ("50", 50, None, "$50.00"),
    ],
)
def test_parse_budget(text: str, amount: float, hours: float | None, formatted: str) -> None:
    budget = parse_budget(text)
    assert budget is not None
    assert (budget.sum, budget.hours) == (amount, hours)
    assert str(budget) == formatted.replace("a hour", "an hour")
    again = parse_budget(budget.expression)
    assert again is not None
    assert (again.sum, again.hours) == (amount, hours), "the formatted budget can be parsed"


@pytest.mark.parametrize(
    "text",
    ["", "0", "0/day", "-5", "20€", "20/", "20/fortnight", "20/0h", "/day", "1e9", "20/8", "20/m"],
)
def test_invalid_budget(text: str) -> None:
    assert parse_budget(text) is None


def test_budget_allows_price() -> None:
    day = parse_budget("24/day")
    assert day is not None
    assert day.allows(1.0), "to the cent"
    assert day.allows(0.99)
    assert not day.allows(1.01)
    assert day.hours_of(0.5) == 48
    alone = parse_budget("24")
    assert alone is not None
    assert alone.allows(1_000_000), "for a while"
    assert alone.hours_of(48) == 0.5
