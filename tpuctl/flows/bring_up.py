"""Making a stack in one zone after the other, and waiting until its machines are ready for jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from tpuctl.cloud.classification import NodesClosed
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.step import step
from tpuctl.errors import Scope, TpuctlError
from tpuctl.flows.controller import shell_variables, write_shell_environment
from tpuctl.flows.provision import Prepared, apply_plan, give_up_zone
from tpuctl.flows.watch import settle_machines
from tpuctl.flows.workers import connect_workers
from tpuctl.flows.zones import Refusal, exhausted, next_zone, zones_to_try
from tpuctl.model.events import Emit, Note, Planned, PlannedStep
from tpuctl.model.stack import Stack
from tpuctl.model.status import NodeStatus
from tpuctl.remote.ssh import SshTransport
from tpuctl.resources.composition import kind_of
from tpuctl.resources.custom_roles import has_limits, is_recovered

__all__ = ["apply_somewhere", "plan_settling", "settle"]

WORKERS, WATCH = "ssh/workers", "ssh/watch"
JOBS_BY_SSH = "jobs are sent over SSH"
KEPT_BY_THEM = "they keep the limits, and use the bucket with their own account"


def plan_settling(prepared: Prepared) -> Planned:
    """What `settle` does once the plan has been carried out."""
    addresses = (one.address for one in prepared.plan)
    machines = sorted(one for one in addresses if kind_of(one).is_machine)
    return Planned(
        (
            PlannedStep(WORKERS, "connect", JOBS_BY_SSH, tuple(machines)),
            PlannedStep(WATCH, "check", KEPT_BY_THEM, (WORKERS,)),
        )
    )


async def apply_somewhere(
    prepared: Prepared, plan: Callable[[str], Awaitable[Prepared]], emit: Emit
) -> Prepared:
    """Carry the plan out, in the next zone when one refuses for itself or its region alone.

    `plan` makes the plan for another zone; what the zone before has goes with it. The plan that
    succeeded is returned.
    """
    zones = zones_to_try(prepared.stack, prepared.plan)
    refusals: list[Refusal] = []
    while True:
        zone = prepared.stack.zone
        try:
            await apply_plan(prepared.plan, prepared.resources, emit)
        except TpuctlError as error:
            if isinstance(error, NodesClosed):  # no zone will have it: nothing waits for it
                await give_up_zone(prepared, emit)
            if error.scope not in (Scope.ZONE, Scope.REGION):
                raise
            refusals.append(Refusal(zone, error))
            following = next_zone(zones, refusals)
            if following is None:
                await give_up_zone(prepared, emit)
                told = exhausted(refusals, prepared.stack, zones)
                if told is error:  # which keeps what it came from
                    raise
                raise told from error
            emit(Note(f"{refusals[-1]}. Trying {following}."))
            prepared = await plan(following)
            continue
        if refusals:
            emit(Note(f"Made in {zone}, for {'; '.join(str(one) for one in refusals)}."))
        return prepared


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
