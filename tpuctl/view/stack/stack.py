"""Plans with their cost and quota, and what is left of a stack, on stdout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from tpuctl.catalog import region_of
from tpuctl.model.cost.cost import Cost, egress_price
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.stack import Stack
from tpuctl.units import billed_size, counted, dollars, format_duration
from tpuctl.view.progress.progress_state import MAX_UNCHANGED
from tpuctl.view.stack.cost import on_google, print_cost
from tpuctl.view.terminal.tables import print_table
from tpuctl.view.terminal.text_wrapping import print_wrapped

if TYPE_CHECKING:
    from tpuctl.model.capacity.quota import QuotaLine, QuotaReport
    from tpuctl.model.cost.race_cost import RaceCost
    from tpuctl.model.stack.spending import BudgetUse, Spending
    from tpuctl.model.status.status import Holding, Remaining

SIGNS = {
    Action.CREATE: "+",
    Action.UPDATE: "~",
    Action.DELETE: "-",
    Action.NOTHING: "·",
    Action.LEAVE: "=",
}
# Readable on dark and light backgrounds; the signs and words carry the same meaning.
STYLES = {
    Action.CREATE: "green",
    Action.UPDATE: "magenta",
    Action.DELETE: "bold red",
    Action.NOTHING: "dim",
    Action.LEAVE: "dim",
}
NUMBERS = ("used", "new", "left", "max")


def show_plan(plan: Plan, *, no_color: bool = False) -> None:
    """A line for each change, and one for all that stays if it is much, as `up` shows it."""
    unchanged = [change for change in plan if change.action is Action.NOTHING]
    if len(unchanged) <= MAX_UNCHANGED:
        unchanged = []
    rows = [
        (
            Text(SIGNS[change.action], STYLES[change.action]),
            Text(change.address, "dim" if change.action is Action.NOTHING else ""),
            Text.assemble((f"{change.action.value}: ", STYLES[change.action]), change.because),
        )
        for change in plan
        if change not in unchanged
    ]
    if unchanged:
        names = ", ".join(change.address for change in unchanged)
        cells = (SIGNS[Action.NOTHING], f"{len(unchanged)} unchanged", names)
        rows.append((Text(cells[0], "dim"), Text(cells[1], "dim"), Text(cells[2], "dim")))
    print_table(("", "resource", "reason"), rows, no_color=no_color)


def show_costs(
    stack: Stack,
    cost: Cost,
    fallbacks: Mapping[Candidate, Cost],
    race: RaceCost | None = None,
    *,
    is_free: bool,
) -> None:
    """The cost of the stack, and of each other candidate: one that `up` falls back to, or of a
    race."""
    print()
    condition = f"if {stack.candidate} is unavailable" if race is None else "if it is the first"
    others = {
        candidate.phrase: (other, _traffic(stack, candidate.zone, condition))
        for candidate, other in fallbacks.items()
    }
    print_cost(cost, others, is_free=is_free)
    if race is not None:
        print_wrapped(f"\n{race_text(race, stack, is_free=is_free)}")


def race_text(race: RaceCost, stack: Stack, *, is_free: bool) -> str:
    """How a race ends, and what it may cost in addition."""
    extra = f"about {dollars(race.extra)}" if race.extra is not None else "an unknown amount"
    rate = f"up to {dollars(race.per_hour)}/h" if race.per_hour is not None else "at their price"
    more = on_google("more", is_free=is_free)
    where = f"{'as' if race.places[0].label else 'in'} {', '.join(map(str, race.places))}"
    limits = stack.file.limits
    limit = f", or until limits.idle ({limits.idle}) ends it" if limits.idle is not None else ""
    return (
        f"Race: the TPU is requested {where} at once. The place where it is granted first keeps "
        "it; all others are deleted at once. A TPU is charged from when it is granted until it is "
        "deleted: if all places grant it at the same time, the race costs "
        f"{extra} {more} ({format_duration(race.seconds)} each). If the race is interrupted, every "
        f"TPU that is granted is charged, {rate} together, until `tpuctl up --race` or "
        f"`tpuctl down`{limit}."
    )


def _traffic(stack: Stack, zone: str, condition: str) -> str:
    rate = egress_price(stack.bucket_location, region_of(zone))
    if rate is not None and not rate.amount:
        return condition
    return f"and {rate} from the bucket" if rate else "and traffic from the bucket"


def show_spending(spending: Spending | None, budget: BudgetUse | None) -> None:
    """What was spent before of the limits that count it."""
    if spending is not None and spending.since is not None:
        print_wrapped(f"\nUsed of the limits: {spending}.")
    if budget is not None:
        print_wrapped(f"\nUsed of the project's budget: {budget}.")


def show_quota(quota: QuotaReport) -> None:
    """Usage of each limit that the plan counts against, and limits that could not be read."""
    if lines := [*quota.lines, *quota.of_alternatives]:
        print()
        print_table(("quota", "where", *NUMBERS), map(_quota_row, lines), numbers=NUMBERS)
    for problem in quota.unread:
        print_wrapped(f"The {problem}.")


def _quota_row(line: QuotaLine) -> tuple[str, ...]:
    name = line.limit.partition("PerProject")[0].partition("-per-project")[0]
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
        print_wrapped(f"\nDeleted: {', '.join(deleted)}.")
    else:
        print("\nThere was nothing to delete.")


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
