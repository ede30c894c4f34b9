"""A race between the zones of a stack: the TPU is requested in all of them at once, and kept where
it is granted first."""

from __future__ import annotations

from collections.abc import Iterable

from tpuctl.engine import apply
from tpuctl.errors import NoCapacity, Scope
from tpuctl.flows.apply import errors_of
from tpuctl.flows.capacity_history import record_attempts
from tpuctl.flows.context import Context
from tpuctl.flows.plan import Prepared, plan
from tpuctl.flows.zones import Refusal, no_zone_error, widest_error
from tpuctl.model.events import Note
from tpuctl.model.plan import Plan, Result
from tpuctl.resources.controller import Controller
from tpuctl.resources.private_access import PrivateAccess
from tpuctl.resources.race import RacedRequest
from tpuctl.units import format_duration

__all__ = ["run_race"]


async def run_race(context: Context, prepared: Prepared) -> Prepared:
    """Apply the plan of a race until one zone has granted the TPU and the other requests are
    deleted; return the plan for the rest of the stack, in that zone.

    That plan lists the project again, and deletes what is left in the other zones. A zone that
    refuses does not end the race. Raises the error of all zones if none is left.
    """
    race = prepared.race
    assert race is not None
    # Made beside the TPU, once its zone is decided.
    later = {
        resource.address
        for resource in prepared.resources
        if isinstance(resource, Controller | PrivateAccess)
    }
    resources = [each for each in prepared.resources if each.address not in later]
    after = {
        address: needed - later
        for address, needed in prepared.plan.after.items()
        if address not in later
    }
    changes = tuple(change for change in prepared.plan if change.address not in later)
    raced = Plan(changes, after)
    results = await apply.apply(raced, resources, context.emit)
    await record_attempts(prepared.stack, context.cloud, raced, resources, results)

    zones = {each.address: each.stack.zone for each in resources if isinstance(each, RacedRequest)}
    errors = errors_of(results)
    refusals = [
        Refusal(zone, errors[address])
        for address, zone in zones.items()
        if address in errors and zone != race.winner
    ]
    if race.winner:
        won = next(results[address] for address, zone in zones.items() if zone == race.winner)
        context.emit(Note(_outcome_text(race.winner, won, zones.values(), refusals)))
        return await plan(context, race.winner)
    others = {address: error for address, error in errors.items() if address not in zones}
    wide = {
        address: error
        for address, error in errors.items()
        if error.scope not in (Scope.ZONE, Scope.REGION) and not isinstance(error, NoCapacity)
    }
    if others or wide:
        raise widest_error(others or wide)
    raise no_zone_error(refusals, prepared.stack, prepared.stack.zones)


def _outcome_text(
    winner: str, won: Result, zones: Iterable[str], refusals: Iterable[Refusal]
) -> str:
    refused = {refusal.zone: str(refusal) for refusal in refusals}
    withdrawn = [zone for zone in zones if zone != winner and zone not in refused]
    parts = [f"{winner} granted the TPU first, after {format_duration(won.seconds)}."]
    if withdrawn:
        parts.append(f"Requests deleted in {', '.join(withdrawn)}.")
    if refused:
        parts.append(f"Refused: {'; '.join(refused.values())}.")
    return " ".join(parts)
