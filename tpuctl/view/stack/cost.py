"""Costs of a stack, on stdout.

Amounts are Google's prices. If the cloud in use is free (`is_free`), as the local cloud is, the
texts say so; in JSON they are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from tpuctl.model.cost.cost import Cost
from tpuctl.units import dollars
from tpuctl.view.terminal.tables import print_table

if TYPE_CHECKING:
    from tpuctl.model.jobs.report import RunReport

HOURLY = "per hour"
FREE = "The local cloud is free."


def on_google(text: str, *, is_free: bool) -> str:
    """`charged`, or `charged on Google` where the cloud in use is free."""
    return f"{text} on Google" if is_free else text


def cost_sentence(cost: Cost, *, is_free: bool) -> str:
    """`This stack costs $8.87/h, prices of mid-2026.`"""
    if cost.per_hour is None:
        sentence = "The price of this stack is unknown."
    else:
        sentence = f"This stack costs {cost.amount}, prices of {cost.read}."
    if is_free:
        return f"{FREE} On Google {sentence[0].lower()}{sentence[1:]}"
    return sentence


def run_cost(report: RunReport) -> str:
    """The cost of a whole run: `about $3.00`, `nothing; about $1.20 so far on Google`."""
    if report.cost is None or not report.is_free:
        return run_price(report)
    return f"nothing; {on_google(run_price(report), is_free=True)}"


def run_price(report: RunReport) -> str:
    """What a whole run costs on Google: `about $3.00`, `about $1.20 so far`."""
    if report.cost is None:
        return "unknown"
    return f"about {dollars(report.cost)}{' so far' if report.is_running else ''}"


def print_cost(
    cost: Cost, fallbacks: Mapping[str, tuple[Cost, str]] | None = None, *, is_free: bool = False
) -> None:
    """Print a table: a line for each charged item, then the total and the date of the prices.

    `fallbacks` adds a line for each fallback, as in `in us-east5-a`, with its total and a remark.
    """
    rows: list[tuple[str | Text, ...]] = [
        (line.item, line.amount.removesuffix("/h"), line.note) for line in cost.lines
    ]
    dated = f"prices of {cost.read}" if cost.read else ""
    total = Text("total", "bold"), Text(cost.amount.removesuffix("/h"), "bold")
    rows.append((*total, dated))
    for place, (other, remark) in (fallbacks or {}).items():
        rows.append((f"or {place}", other.amount.removesuffix("/h"), remark))
    print_table((on_google("charged", is_free=is_free), HOURLY, ""), rows, numbers=(HOURLY,))
