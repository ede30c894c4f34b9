"""What a stack costs, on stdout and in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuctl.model.cost import Cost
from tpuctl.view.tables import print_table

__all__ = ["cost_data", "print_cost"]

HOURLY = "an hour"


def print_cost(cost: Cost, elsewhere: Mapping[str, tuple[Cost, str]] | None = None) -> None:
    """A table: a line for each thing that is charged, then the sum and the date of the prices.

    `elsewhere` adds a line for each zone that may come instead, with the sum and a remark.
    """
    rows = [(line.what, line.amount.removesuffix("/h"), line.note) for line in cost.lines]
    dated = f"prices of {cost.read}" if cost.read else ""
    rows.append(("in all", cost.amount.removesuffix("/h"), dated))
    for zone, (other, remark) in (elsewhere or {}).items():
        rows.append((f"or in {zone}", other.amount.removesuffix("/h"), remark))
    print_table(("charged", HOURLY, ""), rows, numbers=(HOURLY,))


def cost_data(cost: Cost) -> dict[str, Any]:
    """US dollars; `null` where no price is known, and `complete` false then."""
    return {
        "currency": "USD",
        "per_hour": _rounded(cost.per_hour),
        "per_month": _rounded(cost.per_month),
        "complete": cost.is_complete,
        "read": cost.read,
        "lines": [
            {
                "what": line.what,
                "per_hour": _rounded(line.per_hour),
                "note": line.note,
                "read": line.read,
            }
            for line in cost.lines
        ],
    }


def _rounded(amount: float | None) -> float | None:
    return None if amount is None else round(amount, 6)
