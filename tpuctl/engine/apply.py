"""Carries out a plan, telling what happens."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.engine.graph import walk
from tpuctl.engine.resource import Resource
from tpuctl.errors import TpuctlError
from tpuctl.model.events import Emit, Outcome, StepFinished, StepProgress, StepStarted
from tpuctl.model.plan import Plan, Result
from tpuctl.waiting import Clock, SystemClock

__all__ = ["apply"]


async def apply(
    plan: Plan, resources: Sequence[Resource], emit: Emit, clock: Clock | None = None
) -> dict[str, Result]:
    """Walk the plan. Expected failures end in the results; bugs come out as they are."""
    clock = clock or SystemClock()
    by_address = {one.address: one for one in resources}

    async def visit(address: str) -> Result:
        change = plan.change(address)
        if not change.is_work:
            emit(StepFinished(address, Outcome.UNCHANGED, 0.0, change.because))
            return Result(address, Outcome.UNCHANGED, because=change.because)
        started = clock.now()
        emit(StepStarted(address, change.action.value, change.because))

        def report(text: str, fraction: float | None = None) -> None:
            emit(StepProgress(address, text, fraction))

        try:
            await by_address[address].apply(change, report)
        except TpuctlError as error:
            seconds = clock.now() - started
            emit(StepFinished(address, Outcome.FAILED, seconds, str(error)))
            return Result(address, Outcome.FAILED, seconds, str(error), error)
        seconds = clock.now() - started
        emit(StepFinished(address, Outcome.DONE, seconds))
        return Result(address, Outcome.DONE, seconds)

    results = await walk(plan.after, visit)
    for result in results.values():
        if result.outcome is Outcome.SKIPPED:
            emit(StepFinished(result.address, Outcome.SKIPPED, 0.0, result.because))
    return results
