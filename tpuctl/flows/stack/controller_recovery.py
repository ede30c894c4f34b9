"""Create and delete a stack's TPU with the limited permissions of its controller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.planner import observe, plan_up
from tpuctl.engine.resource import Resource
from tpuctl.flows.machines.controller import with_controller_zone
from tpuctl.flows.machines.inventory import list_tpus
from tpuctl.flows.stack.zones import is_left_over, place_and_race, with_other_tpus_first
from tpuctl.model.plan import Action, Change, Plan
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.composition import (
    addresses_of,
    belongs_to_tpu,
    in_other_zones,
    kind_of,
    resources_of,
)
from tpuctl.resources.tpu.race import Race

WAITING = ("readiness",)  # fields of an update that only continues to wait for an existing request


@dataclass(frozen=True)
class RecoveryPlan:
    """A plan to create the TPU; `stack` is set to the plan's candidate."""

    stack: Stack
    plan: Plan
    resources: list[Resource]
    race: Race | None = None


async def recovery_plan(
    stack: Stack,
    cloud: Cloud,
    public_keys: Callable[[], str],
    candidate: Candidate | None = None,
    *,
    race: bool = False,
) -> RecoveryPlan:
    """Plan to create the TPU of `candidate`, by default of the one where it is, or the first.

    Everything else exists and is not changed, nor is an existing TPU. TPUs that failed tries have
    left with other candidates are deleted.
    """
    items = await list_tpus(stack, cloud) if len(stack.candidates) > 1 else []
    place, entered = place_and_race(stack, items, candidate, race=race)
    stack = await with_controller_zone(stack.at(place), cloud)
    resources = tpu_resources(stack, cloud, public_keys, entered)
    used = (stack.candidate,) if entered is None else entered.places
    addresses = addresses_of(resources)
    left = [item for item in items if is_left_over(item, stack, used, addresses)]
    resources += in_other_zones(left, stack, cloud, resources, beside_creation=True)
    whole = plan_up(resources, await observe(resources))
    if len(stack.alternatives) > 1:
        whole = with_other_tpus_first(whole, addresses, stack.zone)
    plan = Plan(tuple(_creation_only(change) for change in whole), whole.after)
    return RecoveryPlan(stack, plan, resources, entered)


def tpu_resources(
    stack: Stack,
    cloud: Cloud,
    public_keys: Callable[[], str] = str,
    race: Race | None = None,
) -> list[Resource]:
    """The stack's TPU resources: all that its controller may create and delete."""
    everything = resources_of(stack, cloud, public_key=public_keys, race=race)
    return [resource for resource in everything if belongs_to_tpu(kind_of(resource.address))]


def _creation_only(change: Change) -> Change:
    if change.action is not Action.UPDATE or change.fields == WAITING:
        return change
    return Change(change.address, Action.NOTHING, f"exists; not changed: {change.because}")
