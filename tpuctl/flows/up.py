"""`up`: bring a stack up, in one zone after the other, until its machines are ready for jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tpuctl.cloud.classification import NodesClosed
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.planner import observe, plan_down
from tpuctl.engine.step import step
from tpuctl.errors import Conflict, Scope, TpuctlError
from tpuctl.flows.apply import apply_plan
from tpuctl.flows.concurrent_down import DownWatch, TakenDown
from tpuctl.flows.context import Context
from tpuctl.flows.controller import shell_variables, write_shell_environment
from tpuctl.flows.controller_recovery import tpu_resources
from tpuctl.flows.down import down
from tpuctl.flows.handover import equip_controller
from tpuctl.flows.local_liveness import unless_gone
from tpuctl.flows.machine_readiness import settle_machines
from tpuctl.flows.plan import Prepared, plan
from tpuctl.flows.workers import connect_workers, connections, nodes_of
from tpuctl.flows.zones import Refusal, exhausted, next_zone, zones_to_try
from tpuctl.model.events import Emit, Note, Planned, PlannedStep
from tpuctl.model.inventory import MACHINES, TPU_KINDS
from tpuctl.model.plan import Action
from tpuctl.model.stack import Stack
from tpuctl.model.status import NodeStatus
from tpuctl.remote.ssh import SshTransport
from tpuctl.resources.roles import has_limits, is_recovered

__all__ = ["provision", "settle", "up"]

WORKERS, WATCH = "ssh/workers", "ssh/watch"
JOBS_BY_SSH = "jobs are sent over SSH"
KEPT_BY_THEM = "they keep the limits, and use the bucket with their own account"
ZONAL = (*TPU_KINDS, "controller", "disk")


async def up(
    context: Context,
    confirm: Callable[[Prepared], None] | None = None,
    *,
    prepared: Prepared | None = None,
) -> Prepared:
    """Bring the stack up, until every machine is ready for jobs.

    `confirm` sees a plan with work in it first, and raises to refuse it. A plan that was made
    before, `prepared`, is carried out as it is.
    """
    stack, cloud, emit = context.stack, context.cloud, context.emit
    prepared = prepared or await plan(context)
    if confirm is not None and not prepared.plan.is_empty:
        confirm(prepared)
    emit(_planned_settling(prepared))
    if not prepared.plan.is_empty:
        _ = context.keys.pair  # where it cannot be had, nothing is made
        await context.prepare_image(stack.runtime.tensorflow, emit)
        prepared = await provision(context, prepared)
    async with connections(context) as transports:
        node = (await nodes_of(stack, cloud))[0] if stack.is_node else None
        await settle(prepared.stack, cloud, node, transports, emit)
    if context.controller is None:
        await equip_controller(prepared.stack, cloud, context.keys, emit)
    return prepared


async def provision(context: Context, prepared: Prepared) -> Prepared:
    """Carry a plan out, in other zones if need be. The machines may not answer yet after it.

    Raises Conflict, with everything taken away again, when the stack was taken down meanwhile.
    """
    downs = DownWatch(context.stack, context.cloud, context.emit)
    await downs.begin()
    applying = downs.unless_counted(_apply_in_zones(replace(context, emit=downs.emit), prepared))
    try:
        return await unless_gone(applying, context.cloud.endpoint, "tpuctl up")
    except TakenDown as taken:
        raise await _undo(context) from taken


async def _apply_in_zones(context: Context, prepared: Prepared) -> Prepared:
    """Carry the plan out, in the next zone when one refuses for itself or its region alone.

    What the zone before has goes with the plan for the next. The one that succeeded is returned.
    """
    zones = zones_to_try(prepared.stack, prepared.plan)
    refusals: list[Refusal] = []
    while True:
        zone = prepared.stack.zone
        try:
            await apply_plan(prepared.plan, prepared.resources, context.emit)
        except TpuctlError as error:
            if isinstance(error, NodesClosed):  # no zone will have it: nothing waits for it
                await _give_up_zone(prepared, context.emit)
            if error.scope not in (Scope.ZONE, Scope.REGION):
                raise
            refusals.append(Refusal(zone, error))
            following = next_zone(zones, refusals)
            if following is None:
                await _give_up_zone(prepared, context.emit)
                last = exhausted(refusals, prepared.stack, zones)
                if last is error:  # which keeps what it came from
                    raise
                raise last from error
            context.emit(Note(f"{refusals[-1]}. Trying {following}."))
            prepared = await plan(context, following)
            continue
        if refusals:
            context.emit(Note(f"Made in {zone}, for {'; '.join(str(one) for one in refusals)}."))
        return prepared


async def _give_up_zone(prepared: Prepared, emit: Emit) -> None:
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


async def _undo(context: Context) -> TpuctlError:
    """Take away what was made beside a `down`; the error that tells of it."""
    stack = context.stack
    context.emit(Note("The stack is being taken down by somebody else: undoing what was made."))
    if context.controller is not None:
        resources = tpu_resources(stack, context.cloud)
        await apply_plan(plan_down(resources, await observe(resources)), resources, context.emit)
    else:
        await down(context)
    return Conflict(
        "Taken down meanwhile",
        f"somebody took stack {stack.name} down while it was brought up; "
        "what was made has been taken away again",
        hint="Bring it up anew with\n    tpuctl up",
    )


def _planned_settling(prepared: Prepared) -> Planned:
    """What `settle` does once the plan has been carried out."""
    addresses = (one.address for one in prepared.plan)
    machines = sorted(one for one in addresses if one.partition("/")[0] in MACHINES)
    return Planned(
        (
            PlannedStep(WORKERS, "connect", JOBS_BY_SSH, tuple(machines)),
            PlannedStep(WATCH, "check", KEPT_BY_THEM, (WORKERS,)),
        )
    )


async def settle(
    stack: Stack,
    cloud: Cloud,
    node: NodeStatus | None,
    transports: Mapping[int, SshTransport],
    emit: Emit,
) -> None:
    """Wait until every machine answers, and is as it is to be before a job.

    `node` is the TPU node that a controller has to know of; None on TPU VMs.
    """
    with step(emit, WORKERS, "connect", JOBS_BY_SSH):
        await connect_workers(cloud, list(transports.values()))
        if node is not None:
            variables = shell_variables(stack, node, cloud=cloud.endpoint.name)
            await write_shell_environment(transports[0], variables)
    with step(emit, WATCH, "check", KEPT_BY_THEM) as check:
        has_watch = has_limits(stack) or (stack.is_node and is_recovered(stack))
        await settle_machines(transports, stack.bucket, check.report, has_watch=has_watch)
