"""Texts about the TPU of a script without a stack file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.model.plan import Action
from tpuctl.view.stack.cost import on_google
from tpuctl.view.terminal.text_wrapping import plain

if TYPE_CHECKING:
    from tpuctl.model.plan import Plan
    from tpuctl.model.stack.stack import Stack


def describe(stack: Stack, plan: Plan, program: str, *, source: str, goes_down: bool) -> str:
    """What is created for a script, in lines of a name and a value. `source` is the project's."""
    facts = [
        ("script", f"{plain(program)}, as stack {stack.name}"),
        ("project", stack.project + (f", from {source}" if source else "")),
        ("TPU", f"{stack.counted_type}, {_capacity(stack)}, in {_zones(stack)}"),
        ("limit", _limit(stack, goes_down=goes_down)),
        ("bucket", f"gs://{stack.bucket}, which is kept"),
    ]
    facts += [
        ("deletes", f"{change.address}: {change.because}")
        for change in plan
        if change.action is Action.DELETE
    ]
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"{name:{width}}  {value}" for name, value in facts)


def describe_kept(stack: Stack, *, is_free: bool) -> str:
    """What is up, and what it costs."""
    from tpuctl.model.cost.stack_cost import cost_of

    cost = cost_of(stack)
    amount = "an unknown amount" if cost.per_hour is None else cost.amount
    limit = stack.file.limits.idle
    end = "" if limit is None else f", until it has had no job or login for {limit}"
    return (
        f"Stack {stack.name} stays up, with {stack.counted_type}. It costs "
        f"{on_google(amount, is_free=is_free)}{end}."
    )


def _capacity(stack: Stack) -> str:
    return "spot" if stack.is_spot else stack.file.tpu.capacity.replace("-", " ")


def _zones(stack: Stack) -> str:
    first, *others = dict.fromkeys(candidate.zone for candidate in stack.candidates)
    others = [zone for zone in (first, *others) if zone != stack.zone]
    return stack.zone + (f" (without capacity there: {', '.join(others)})" if others else "")


def _limit(stack: Stack, *, goes_down: bool) -> str:
    idle = stack.file.limits.idle
    alone = "" if idle is None else f"; by itself after {idle} without a job or login"
    return ("deleted at the end" if goes_down else "kept") + alone
