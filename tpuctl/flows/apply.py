"""Apply a plan, and choose which of several failures to raise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpuctl.engine import apply
from tpuctl.engine.resource import Resource
from tpuctl.errors import TpuctlError
from tpuctl.flows.zones import widest_error
from tpuctl.model.events import Emit, Outcome
from tpuctl.model.plan import Plan, Result

__all__ = ["apply_plan", "errors_of", "raise_failure"]


async def apply_plan(plan: Plan, resources: Sequence[Resource], emit: Emit) -> dict[str, Result]:
    """Apply a plan. Once all steps have ended, raise the failure with the widest scope, if any."""
    results = await apply.apply(plan, resources, emit)
    raise_failure(results)
    return results


def errors_of(results: Mapping[str, Result]) -> dict[str, TpuctlError]:
    """The errors of the steps that failed, by address."""
    return {
        result.address: result.error
        for result in results.values()
        if result.outcome is Outcome.FAILED and isinstance(result.error, TpuctlError)
    }


def raise_failure(results: Mapping[str, Result]) -> None:
    """Raise the failure with the widest scope, if any."""
    if errors := errors_of(results):
        raise widest_error(errors)
