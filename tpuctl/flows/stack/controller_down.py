"""Take a stack down from its controller, with the limited permissions that has."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from tpuctl.engine.planner import observe, plan_down
from tpuctl.errors import NotFound
from tpuctl.flows.context import Context
from tpuctl.flows.machines.controller import find_controller
from tpuctl.flows.machines.inventory import list_tpus
from tpuctl.flows.stack.apply import apply_plan
from tpuctl.flows.stack.controller_recovery import tpu_resources
from tpuctl.flows.stack.spending import end_spending
from tpuctl.resources.base import CloudKind
from tpuctl.resources.composition import in_other_zones, kind_of, resources_of
from tpuctl.resources.machines.disk import DataDisk
from tpuctl.resources.network.nat import Nat
from tpuctl.resources.project.stack_record import Record


async def down_from_controller(context: Context) -> None:
    """Delete what is charged by the hour: the TPU, its disks, Cloud NAT, and last this machine,
    which ends soon. The bucket stays, and what costs nothing, which a `down` elsewhere deletes."""
    stack, cloud = context.stack, context.cloud
    await Record(stack, cloud).count_down()
    await delete_tpu(context, Nat)
    with suppress(NotFound):
        machine = await find_controller(stack, cloud)
        where: dict[str, Any] = {
            "project": stack.project,
            "zone": machine.zone,
            "instance": machine.name,
        }
        # The end of the operation would be for another machine to see.
        client = cloud.client("instances")
        await cloud.call(f"controller {machine.name}", client.delete_unary, **where)


async def delete_tpu(context: Context, *others: type[CloudKind]) -> None:
    """Delete the stack's TPU, requests for one, its disks, and what it has of other kinds."""
    stack, cloud = context.stack, context.cloud
    await cloud.abandoned_calls()  # what they create is deleted, too
    kinds = (DataDisk, *others, *(kind_of(item.address) for item in tpu_resources(stack, cloud)))
    everything = resources_of(stack, cloud)
    charged = [resource for resource in everything if kind_of(resource.address) in kinds]
    items = await list_tpus(stack, cloud)
    charged += in_other_zones(items, stack, cloud, charged)
    await apply_plan(plan_down(charged, await observe(charged)), charged, context.emit)
    await end_spending(stack, cloud, has_file=True)
