"""Carrying a plan out, and of several failures the one to raise."""

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
    """Carry a plan out. After everything has ended the furthest reaching failure is raised."""
    results = await apply.apply(plan, resources, emit)
    errors = {
        result.address: result.error
        for result in results.values()
        if result.outcome is Outcome.FAILED and isinstance(result.error, TpuctlError)
    }
    if errors:
        raise widest_error(errors)
    return results
