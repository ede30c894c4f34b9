"""Plans with their cost and quota, and what is left of a stack, on stdout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from tpuctl.catalog import region_of
from tpuctl.model.cost import Cost, egress_price
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack import Stack
from tpuctl.units import billed_size, counted, dollars
from tpuctl.view.cost import on_google, print_cost
from tpuctl.view.tables import console, print_table

if TYPE_CHECKING:
    from tpuctl.model.quota import QuotaLine, QuotaReport
    from tpuctl.model.status import Holding, Remaining

__all__ = [
    "show_costs",
    "show_plan",
    "show_quota",
    "show_remaining",
]

SIGNS = {
    Action.CREATE: "+",
    Action.UPDATE: "~",
    Action.DELETE: "-",
    Action.NOTHING: "·",
    Action.LEAVE: "=",
}
NUMBERS = ("used", "new", "left", "max")


def show_plan(plan: Plan) -> None:
    print_table(
        ("", "resource", "reason"),
        [
            (SIGNS[change.action], change.address, f"{change.action.value}: {change.because}")
            for change in plan
        ],
    )


def show_costs(stack: Stack, cost: Cost, fallbacks: Mapping[str, Cost], *, is_free: bool) -> None:
    """The cost of the stack, and in each zone that `up` falls back to."""
    print()
    others = {zone: (other, _traffic(stack, zone)) for zone, other in fallbacks.items()}
    print_cost(cost, others, is_free=is_free)


def _traffic(stack: Stack, zone: str) -> str:
    rate = egress_price(stack.bucket_location, region_of(zone))
    if rate is not None and not rate.amount:
        return f"if {stack.zone} is unavailable"
    return f"and {rate} from the bucket" if rate else "and traffic from the bucket"


def show_quota(quota: QuotaReport) -> None:
    """Usage of each limit that the plan counts against, and limits that could not be read."""
    if quota.lines:
        print()
        print_table(("quota", "where", *NUMBERS), map(_quota_row, quota.lines), numbers=NUMBERS)
    for problem in quota.unread:
        console().print(Text(f"The {problem}."))


def _quota_row(line: QuotaLine) -> tuple[str, ...]:
    name = line.limit.partition("PerProject")[0]
    amounts = (line.used, line.added, line.left, line.allowed)
    return (
        f"{name}, {line.unit}" if line.unit not in ("", "GB") else name,  # metrics say GB
        line.place,
        *("-" if amount is None else f"{amount:,.0f}" for amount in amounts),
    )


def show_remaining(remaining: Iterable[Remaining], *, is_free: bool) -> None:
    """Remaining resources with the reason; deleted ones by name."""
    remaining = list(remaining)
    print_table(
        ("resource", "state", "reason"),
        [
            (item.address, item.state, _reason(item, is_free))
            for item in remaining
            if item.state != "deleted"
        ],
    )
    if deleted := [item.address for item in remaining if item.state == "deleted"]:
        console().print(Text(f"\nDeleted: {', '.join(deleted)}."))


def _reason(item: Remaining, is_free: bool) -> str:
    if item.holding is None:
        return item.reason
    return f"{item.reason}; holds {_holding_text(item.holding)}{_monthly(item, is_free)}"


def _monthly(item: Remaining, is_free: bool) -> str:
    if item.per_month is None or item.holding is None:
        return ", price unknown"
    price = dollars(item.per_month, is_complete=item.holding.is_whole)
    return on_google(f", {price} per month", is_free=is_free)


def _holding_text(holding: Holding) -> str:
    if not holding.objects:
        return "nothing"
    least = "" if holding.is_whole else "at least "
    text = f"{least}{billed_size(holding.bytes)} in {counted(holding.objects, 'object')}"
    if not holding.cached_bytes:
        return text
    return f"{text} ({billed_size(holding.cached_bytes)} of environments and compiled programs)"
