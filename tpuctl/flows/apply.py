"""Apply a plan, and choose which of several failures to raise."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.engine import apply
from tpuctl.engine.resource import Resource
from tpuctl.errors import TpuctlError
from tpuctl.flows.zones import widest_error
from tpuctl.model.events import Emit, Outcome
from tpuctl.model.plan import Plan, Result

__all__ = ["apply_plan"]


async def apply_plan(plan: Plan, resources: Sequence[Resource], emit: Emit) -> dict[str, Result]:
    """Apply a plan. Once all steps have ended, raise the failure with the widest scope, if any."""
    results = await apply.apply(plan, resources, emit)
    errors = {
        result.address: result.error
        for result in results.values()
        if result.outcome is Outcome.FAILED and isinstance(result.error, TpuctlError)
    }
    if errors:
        raise widest_error(errors)
    return results
