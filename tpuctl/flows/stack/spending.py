"""What stacks have spent of their limits: read, refused when nothing is left, counted from zero."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import NotFound, TimedOut, Usage
from tpuctl.model.cost.stack_cost import hourly_rates
from tpuctl.model.stack.spending import (
    DISKS,
    NOTHING_SPENT,
    BudgetUse,
    Ledger,
    Period,
    Spending,
    Spent,
)
from tpuctl.model.stack.stack import Stack
from tpuctl.polling import gather_all
from tpuctl.resources.project.ledger import LedgerObject


@dataclass(frozen=True)
class Ledgers:
    """What limits count, as of a time: of the stack's life, and of all stacks of the project in a
    month. None is for no such limit."""

    stack: Stack
    now: datetime
    life: Ledger | None
    month: Ledger | None

    @property
    def spending(self) -> Spending | None:
        if self.life is None:
            return None
        spent, limits = self.life.spent(self.now), self.stack.file.limits
        return Spending(spent.cost, spent.hours, limits.max_cost, limits.max_hours, self.life.begin)

    @property
    def budget(self) -> BudgetUse | None:
        if self.month is None or self.stack.budget is None:
            return None
        return BudgetUse.of(self.month, self.stack.budget, self.now)

    def spent(self, *, has_tpu: bool = False) -> Spent:
        """What new machines count on from; `has_tpu`: without the TPU that exists."""
        spent = NOTHING_SPENT if self.life is None else self.life.spent(self.now, has_tpu=has_tpu)
        return replace(spent, month=0.0 if self.budget is None else self.budget.cost)

    def restarted(self) -> Ledgers:
        """With a life that begins now."""
        life = None if self.life is None else self.life.restarted(self.now)
        return replace(self, life=life)


async def read_ledgers(stack: Stack, cloud: Cloud) -> Ledgers:
    """The ledgers that limits count by. Raises what keeps one from being read: then nothing may be
    spent."""

    async def read(ledger: LedgerObject, *, is_used: bool) -> Ledger | None:
        return await ledger.read() if is_used else None

    life, month = await gather_all(
        [
            read(LedgerObject.of(stack, cloud), is_used=stack.has_life_limits),
            read(LedgerObject.of_budget(stack, cloud), is_used=stack.budget is not None),
        ]
    )
    return Ledgers(stack, cloud.server_clock.now(), life, month)


def require_life_limits(stack: Stack) -> None:
    """Raise Usage if no limit counts what the stack has spent since its first `up`."""
    if not stack.has_life_limits:
        raise Usage(
            "No limit to reset",
            f"{stack.path} sets neither limits.max_cost nor limits.max_hours",
            hint="Set one:\n    limits: {max_cost: 40}",
            where="--new-limits",
        )


def require_left(stack: Stack, spending: Spending | None, budget: BudgetUse | None) -> None:
    """Raise TimedOut if nothing is left of a limit."""
    if spending is not None and spending.is_used_up:
        raise TimedOut(
            "Limit reached",
            f"the machines of stack {stack.name} have used {spending}",
            hint=f"Raise limits in {stack.path}, or reset them:\n    tpuctl up --new-limits",
        )
    if budget is not None and budget.is_used_up:
        raise TimedOut(
            "Budget used up",
            f"the stacks of project {stack.project} have cost {budget}",
            hint=f"Raise limits.budget in {stack.path}, or wait for the next month.",
        )


async def count_spending(stack: Stack, cloud: Cloud, *, is_new: bool) -> bool:
    """Prepare the ledgers for machines that are created next; `is_new`: the stack's from zero.

    Machines report themselves, data disks cannot. Returns False if there is no bucket yet.
    """
    rate = hourly_rates(stack).get(DISKS)

    def change(ledger: Ledger) -> Ledger:
        now = cloud.server_clock.now().replace(microsecond=0)
        if is_new and ledger_object.is_of_stack:
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

    has_buckets = True
    for ledger_object in LedgerObject.all_of(stack, cloud):
        try:
            await ledger_object.update(change)
        except NotFound:
            has_buckets = False
    return has_buckets


async def end_spending(stack: Stack, cloud: Cloud, *, has_file: bool) -> None:
    """Add the end of everything of a stack to its ledgers; without a stack file, to those that
    exist."""
    now = cloud.server_clock.now()
    both = (LedgerObject.of(stack, cloud), LedgerObject.of_budget(stack, cloud))
    for ledger in LedgerObject.all_of(stack, cloud) if has_file else both:
        with suppress(NotFound):
            if (await ledger.read()).periods:
                await ledger.update(lambda before: before.closed(stack.name, now))
