"""Apply a plan, reporting progress as events."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from tpuctl.engine.graph import walk
from tpuctl.engine.resource import Resource
from tpuctl.engine.step import step
from tpuctl.errors import TpuctlError
from tpuctl.model.events import Emit, Outcome, Planned, PlannedStep, StepFinished
from tpuctl.model.plan import Change, Plan, Result
from tpuctl.polling import Clock


async def apply(
    plan: Plan, resources: Sequence[Resource], emit: Emit, clock: Clock | None = None
) -> dict[str, Result]:
    """Emit the plan, then walk it. Changes that are no longer needed when it is their turn are
    UNCHANGED. A TpuctlError becomes a failed result; any other exception propagates."""
    emit(Planned(tuple(_planned(change, plan) for change in plan)))
    by_address = {resource.address: resource for resource in resources}

    async def visit(address: str) -> Result:
        change, resource = plan.change(address), by_address[address]
        if change.is_work:
            with suppress(TpuctlError):  # applying it reports the error
                change = await resource.revised(change)
        if not change.is_work:
            emit(StepFinished(address, Outcome.UNCHANGED, 0.0, change.because))
            return Result(address, Outcome.UNCHANGED, because=change.because)
        try:
            with step(emit, address, change.action.value, change.because, clock) as work:
                work.result = await resource.apply(change, work.report) or ""
        except TpuctlError as error:
            return Result(address, Outcome.FAILED, work.seconds, str(error), error)
        return Result(address, Outcome.DONE, work.seconds, work.result)

    results = await walk(plan.after, visit)
    for result in results.values():
        if result.outcome is Outcome.SKIPPED:
            emit(StepFinished(result.address, Outcome.SKIPPED, 0.0, result.because))
    return results


def _planned(change: Change, plan: Plan) -> PlannedStep:
    after = tuple(sorted(plan.after.get(change.address, ())))
    return PlannedStep(change.address, change.action.value, change.because, after)
