"""What a stack has spent of its limits: read, refused when nothing is left, counted from zero."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import NotFound, TimedOut, Usage
from tpuctl.model.cost.stack_cost import hourly_rates
from tpuctl.model.stack.spending import DISKS, Ledger, Period, Spending
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.project.ledger import LedgerObject


async def read_ledger(stack: Stack, cloud: Cloud) -> Ledger | None:
    """The stack's ledger; None if no limit counts what is spent. Raises what keeps it from being
    read: then nothing may be spent."""
    return await LedgerObject.of(stack, cloud).read() if stack.counts_spending else None


def spending_of(stack: Stack, ledger: Ledger | None, now: datetime) -> Spending | None:
    """What was spent of the limits; None if no limit counts it."""
    if ledger is None:
        return None
    spent, limits = ledger.spent(now), stack.file.limits
    return Spending(spent.cost, spent.hours, limits.max_cost, limits.max_hours, ledger.begin)


def require_counted(stack: Stack) -> None:
    """Raise Usage if no limit counts what is spent."""
    if not stack.counts_spending:
        raise Usage(
            "No limit to reset",
            f"{stack.path} sets neither limits.max_cost nor limits.max_hours",
            hint="Set one:\n    limits: {max_cost: 40}",
            where="--new-limits",
        )


def require_left(stack: Stack, spending: Spending | None) -> None:
    """Raise TimedOut if nothing is left of the limits."""
    if spending is not None and spending.is_used_up:
        raise TimedOut(
            "Limit reached",
            f"the machines of stack {stack.name} have used {spending}",
            hint=f"Raise limits in {stack.path}, or reset them:\n    tpuctl up --new-limits",
        )


async def count_spending(stack: Stack, cloud: Cloud, *, is_new: bool) -> bool:
    """Prepare the ledger for machines that are created next; `is_new`: from zero.

    Machines report themselves, data disks cannot. Returns False if there is no bucket yet.
    """
    rate = hourly_rates(stack).get(DISKS)

    def change(ledger: Ledger) -> Ledger:
        now = cloud.server_clock.now().replace(microsecond=0)
        if is_new:
            ledger = ledger.restarted(now)
        if not rate:
            return ledger
        disks = Period(
            item=DISKS,
            zone=stack.zone,
            stack=stack.name,
            user=stack.user,
            started=now,
            per_hour=rate,
        )
        return ledger.opened(disks)

    return await _update(stack, cloud, change)


async def end_spending(stack: Stack, cloud: Cloud) -> None:
    """Add the end of everything to the ledger, if there is one."""
    with suppress(NotFound):
        if (await LedgerObject.of(stack, cloud).read()).periods:
            now = cloud.server_clock.now()
            await _update(stack, cloud, lambda ledger: ledger.closed(now))


async def _update(stack: Stack, cloud: Cloud, change: Callable[[Ledger], Ledger]) -> bool:
    try:
        await LedgerObject.of(stack, cloud).update(change)
    except NotFound:
        return False
    return True
