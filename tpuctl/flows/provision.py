"""Bringing a stack up, zone after zone if need be, and taking it down with proof."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tpuctl.catalog import HOURS_PER_MONTH
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.apply import apply
from tpuctl.engine.planner import Snapshot, observe, plan_down, plan_up
from tpuctl.engine.resource import Resource
from tpuctl.errors import TpuctlError
from tpuctl.flows.composition import in_other_zones, resources_of
from tpuctl.flows.holding import holding_of
from tpuctl.flows.inventory import look
from tpuctl.flows.quota import read_limits, read_region, report_of
from tpuctl.flows.zones import home_zone, zone_error
from tpuctl.model.cost import Cost, storage_cost
from tpuctl.model.events import Emit, Outcome
from tpuctl.model.inventory import Found
from tpuctl.model.plan import Action, Plan, Result
from tpuctl.model.quota import QuotaReport
from tpuctl.model.stack import Stack
from tpuctl.model.stack_cost import cost_of, costs_elsewhere
from tpuctl.model.status import Remaining
from tpuctl.resources.secrets import forgotten_secrets

__all__ = [
    "Prepared",
    "Teardown",
    "apply_plan",
    "give_up_zone",
    "prepare_down",
    "prepare_up",
    "prove_down",
]

TPU_KINDS = ("node", "queued", "tpu")
ZONAL = (*TPU_KINDS, "controller", "disk")


@dataclass(frozen=True)
class Prepared:
    """A plan for `up` with what it needs to be carried out. `stack` is in the zone in use."""

    stack: Stack
    plan: Plan
    resources: Sequence[Resource]
    quota: QuotaReport = field(
        default_factory=QuotaReport
    )  # empty where a zone was tried after another

    @property
    def cost(self) -> Cost:
        """What the stack costs when it is up."""
        return cost_of(self.stack)

    @property
    def costs_elsewhere(self) -> dict[str, Cost]:
        """By zone, where `up` goes when this one refuses."""
        return costs_elsewhere(self.stack)

    @property
    def asks_for_closed_node(self) -> bool:
        """Whether a TPU node is to be made, which Google does for few projects any more."""
        return any(
            one.action is Action.CREATE and one.address.startswith("tpu/") for one in self.plan
        )


async def prepare_up(
    stack: Stack,
    cloud: Cloud,
    *,
    sources: tuple[str, ...],
    public_key: Callable[[], str],
    zone: str | None = None,
) -> Prepared:
    """Ask the cloud, then decide: in this zone, else where the stack is already.

    What the stack has in other zones is from tries that were given up, and goes.
    """
    kinds = {*TPU_KINDS, *(("controller",) if stack.controller else ())}
    kinds |= {"disk"} if stack.file.tpu.data_disks else set()
    limits = asyncio.create_task(read_limits(stack, cloud)) if zone is None else None
    region = None
    try:
        in_project = await look(
            cloud, stack.project, stack=stack.name, kinds=sorted(kinds), others=zone is None
        )
        of_stack = [item for item in in_project if item.stack == stack.name]
        here = stack.in_zone(zone or home_zone(stack, of_stack))
        region = asyncio.create_task(read_region(here, cloud)) if zone is None else None
        resources = resources_of(here, cloud, sources=sources, public_key=public_key)
        resources += in_other_zones(
            [item for item in of_stack if not item.serves(here.zone)],
            here,
            cloud,
            resources,
            beside_creation=True,
        )
        resources += await forgotten_secrets(here, cloud, resources)
        plan = plan_up(resources, await observe(resources))
        if limits is None or region is None:
            return Prepared(here, plan, resources)
        quota = report_of(here, plan, in_project, await limits, await region)
        return Prepared(here, plan, resources, quota)
    finally:
        for task in (limits, region):
            if task is not None:
                task.cancel()  # where it has not ended, nobody needs its answer any more


async def give_up_zone(prepared: Prepared, emit: Emit) -> None:
    """Take away what this plan has made in its zone, and what of it is still on its way."""
    made = [
        one
        for one in prepared.resources
        if one.address.partition("/")[0] in ZONAL
        and prepared.plan.change(one.address).action is Action.CREATE
    ]
    plan = plan_down(made, await observe(made))
    if not plan.is_empty:
        await apply_plan(plan, made, emit)


@dataclass(frozen=True)
class Teardown:
    """What `down` is about to do, with everything of the stack in zones it no longer names."""

    stack: Stack
    plan: Plan
    resources: tuple[Resource, ...]


async def prepare_down(
    stack: Stack, cloud: Cloud, *, delete_bucket: bool = False, must_exist: bool = False
) -> Teardown:
    """Like prepare_up, and looks through the whole project for what is the stack's.

    Raises NotFound where the project is not there and `must_exist`.
    """
    resources = resources_of(stack, cloud, delete_bucket=delete_bucket)
    found = await look(cloud, stack.project, stack=stack.name, must_exist=must_exist)
    resources += in_other_zones(found, stack, cloud, resources, delete_bucket=delete_bucket)
    resources += await forgotten_secrets(stack, cloud, resources)
    return Teardown(stack, plan_down(resources, await observe(resources)), tuple(resources))


async def apply_plan(plan: Plan, resources: Sequence[Resource], emit: Emit) -> dict[str, Result]:
    """Carry a plan out. After everything has ended the furthest reaching failure is raised."""
    results = await apply(plan, resources, emit)
    errors = {
        result.address: result.error
        for result in results.values()
        if result.outcome is Outcome.FAILED and isinstance(result.error, TpuctlError)
    }
    if errors:
        raise zone_error(errors)
    return results


async def prove_down(teardown: Teardown, cloud: Cloud) -> tuple[Remaining, ...]:
    """Ask the cloud again for everything that was to go, and say what is still there.

    The project is looked through once more: what came into being meanwhile is told too. A bucket
    of the stack that is still there is told with its size and what it costs a month.
    """
    stack = teardown.stack
    snapshot: Snapshot = await observe(teardown.resources)
    proof = [_remaining(one, teardown.plan, snapshot) for one in teardown.resources]
    known = {one.address for one in teardown.resources}
    there = await look(cloud, stack.project, stack=stack.name)
    for found in there:
        if found.address not in known and _address_at_home(found, stack) not in known:
            proof.append(Remaining(found.address, "remains", "it is there", found.is_billable))
    buckets = {one.address: one for one in there if one.kind == "bucket"}
    return tuple([await _with_holding(one, buckets.get(one.address), cloud) for one in proof])


async def _with_holding(one: Remaining, bucket: Found | None, cloud: Cloud) -> Remaining:
    if bucket is None or one.state == "gone":
        return one
    try:
        holding = await holding_of(cloud, bucket.name)
    except TpuctlError:  # it may not be looked into, or has gone: that it was there is told
        return one
    per_hour = storage_cost(bucket.detail, holding.bytes).per_hour
    per_month = None if per_hour is None else per_hour * HOURS_PER_MONTH
    return replace(one, holding=holding, per_month=per_month)


def _address_at_home(found: Found, stack: Stack) -> str:
    return f"{found.kind}/{found.name}" if found.zone in ("", stack.zone) else found.address


def _remaining(one: Resource, plan: Plan, snapshot: Snapshot) -> Remaining:
    asked = plan.change(one.address)
    now = one.removal(snapshot[one.address])
    if now.is_work:
        state = "remains"
    elif now.action is Action.LEAVE and not asked.is_work and snapshot[one.address] is not None:
        state = "kept"
    else:
        state = "gone"
    return Remaining(one.address, state, now.because, one.is_billable)
