"""A race between the zones of a stack: the TPU is requested in all of them at once, and kept where
it is granted first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpuctl.engine import apply
from tpuctl.engine.resource import Resource
from tpuctl.errors import NoCapacity, Scope
from tpuctl.flows.context import Context
from tpuctl.flows.stack.apply import errors_of
from tpuctl.flows.stack.capacity_history import record_attempts
from tpuctl.flows.stack.zones import Refusal, no_zone_error, widest_error
from tpuctl.model.events import Note
from tpuctl.model.plan import Plan
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.composition import beside_tpu
from tpuctl.resources.tpu.race import Race, RaceEntry
from tpuctl.units import format_duration


async def run_race(
    context: Context, race: Race, stack: Stack, plan: Plan, resources: Sequence[Resource]
) -> tuple[Candidate, Plan]:
    """Apply the plan of a race until one place has granted the TPU and the others' requests and
    nodes are deleted; return that place, and the plan as it was applied.

    The rest of the stack is left to the plan for that place, which also lists the project again,
    and deletes what is left in the others. A place that refuses does not end the race. Raises the
    error of all places if none is left.
    """
    later = beside_tpu(resources)
    now = [resource for resource in resources if resource.address not in later]
    after = {
        address: needed - later for address, needed in plan.after.items() if address not in later
    }
    changes = tuple(change for change in plan if change.address not in later)
    raced = Plan(changes, after)
    results = await apply.apply(raced, now, context.emit)
    await record_attempts(stack, context.cloud, raced, now, results)

    places = {entry.address: entry.place for entry in race.entries}
    errors = errors_of(results)
    refusals = [
        Refusal(place, errors[address])
        for address, place in places.items()
        if address in errors and place != race.winner
    ]
    if race.winner is not None:
        won = next(entry for entry in race.entries if entry.place == race.winner)
        context.emit(Note(_outcome_text(won, places.values(), refusals)))
        return won.place, plan.with_results(results)
    others = {address: error for address, error in errors.items() if address not in places}
    wide = {
        address: error
        for address, error in errors.items()
        if error.scope not in (Scope.ZONE, Scope.REGION) and not isinstance(error, NoCapacity)
    }
    if others or wide:
        raise widest_error(others or wide)
    raise no_zone_error(refusals, stack, race.places)


def _outcome_text(won: RaceEntry, places: Iterable[Candidate], refusals: Iterable[Refusal]) -> str:
    winner, waited = won.place, format_duration(won.waited_seconds or 0.0)
    refused = {refusal.candidate: str(refusal) for refusal in refusals}
    withdrawn = [str(place) for place in places if place != winner and place not in refused]
    granted = "was granted" if winner.label else "granted the TPU"
    parts = [f"{winner} {granted} first, after {waited}."]
    if withdrawn:
        deleted = "Requests deleted:" if winner.label else "Requests deleted in"
        parts.append(f"{deleted} {', '.join(withdrawn)}.")
    if refused:
        parts.append(f"Refused: {'; '.join(refused.values())}.")
    return " ".join(parts)
