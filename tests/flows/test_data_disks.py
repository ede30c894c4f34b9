"""A stack stays in the zone of its data disks: stockouts and changed files do not delete them."""

from __future__ import annotations

import pytest

from tests.support.locations import ZONE
from tests.support.projects import Bench, Project
from tpuctl.cloud.operations import long_operation
from tpuctl.errors import Conflict, NoCapacity
from tpuctl.flows.stack.down import prepare_down
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.resources.machines.disk import DataDisk
from tpuctl.resources.network.address import Address
from tpuctl.resources.project.bucket import Bucket

OTHER_ZONE = "us-central1-a"
BOTH_ZONES = f"{ZONE}, {OTHER_ZONE}"
ANYWHERE = "bucket: {allow_egress: true}"


async def disks(bench: Bench) -> list[tuple[str, str]]:
    resources = (await bench.reopen().status()).inventory
    return [(resource.name, resource.zone) for resource in resources if resource.kind == "disk"]


async def delete_node(bench: Bench) -> None:
    parent = f"projects/{bench.stack.project}/locations/{ZONE}"
    name = f"{parent}/nodes/{bench.stack.stack.names.node}"
    operation = await bench.call("tpu", "delete_node", {"name": name})
    cloud = bench.stack.cloud
    await long_operation(cloud, "tpu", operation.operation, subject="the node", seconds=120)


async def test_stockout_deletes_new_disk_and_keeps_existing_one(
    project: Project, null_cloud: LocalCloud
) -> None:
    bench = project.stack("data_disks: [{size_gb: 20}]", ANYWHERE, zones=BOTH_ZONES)
    fault = remote_control.add_fault(null_cloud, "stockout", zone=ZONE, project=project.id)
    prepared = await bench.provision()
    assert remote_control.fault(null_cloud, fault["id"])["applied"] == 1
    assert prepared.stack.zone == OTHER_ZONE
    name = bench.stack.stack.names.disk(0)
    assert await disks(bench) == [(name, OTHER_ZONE)], (
        "the empty disk in the first zone was deleted"
    )
    await bench.stack.down()

    await bench.provision()
    assert await disks(bench) == [(name, ZONE)]
    await delete_node(bench)
    remote_control.add_fault(null_cloud, "stockout", zone=ZONE, project=project.id)
    with pytest.raises(NoCapacity) as caught:
        await bench.stack.provision(await bench.reopen().plan())
    assert f"data disks are in {ZONE}" in caught.value.diagnostics[0].detail
    assert await disks(bench) == [(name, ZONE)]

    remote_control.remove_all_faults(null_cloud)
    assert (await bench.provision()).stack.zone == ZONE
    assert await disks(bench) == [(name, ZONE)]


async def test_changed_zones_do_not_delete_disk(project: Project) -> None:
    bench = project.stack("data_disks: [{size_gb: 20}]", ANYWHERE, zones=ZONE)
    await bench.provision()
    await delete_node(bench)
    path = bench.stack.stack_file
    path.write_text(path.read_text("utf-8").replace(ZONE, OTHER_ZONE), "utf-8")
    with pytest.raises(Conflict, match="Disk in another zone"):
        await bench.reopen().plan()
    assert await disks(bench) == [(bench.stack.stack.names.disk(0), ZONE)]
    assert not (await bench.reopen().down()).leaks
    assert await disks(bench) == []


async def test_abandoned_zone_is_deleted_in_dependency_order(project: Project) -> None:
    """As after a crash during failover; the machines use the disks until they are deleted. The
    controller stays, with its boot disk."""
    bench = project.stack(
        "data_disks: [{size_gb: 20}]", f"{ANYWHERE}\ncontroller: {{}}", zones=BOTH_ZONES
    )
    names = (await bench.provision()).stack.names
    node, controller = f"node/{ZONE}/{names.node}", f"controller/{ZONE}/{names.controller}"
    data, boot = f"disk/{ZONE}/{names.disk(0)}", f"disk/{ZONE}/{names.controller}"

    moved = await bench.stack.plan(OTHER_ZONE)
    assert {change.address for change in moved.plan if ZONE in change.address} == {node, data}
    assert node in moved.plan.after[data]
    assert not {node, data} & moved.plan.after[node]

    stack = bench.stack.stack.in_zone(OTHER_ZONE)
    plan = (await prepare_down(stack, bench.stack.cloud)).plan
    assert node in plan.after[data]
    assert controller in plan.after[boot]
    assert not {node, controller, data, boot} & (plan.after[node] | plan.after[controller])

    await bench.stack.provision(moved)
    left = {
        (resource.kind, resource.zone)
        for resource in (await bench.reopen().status()).inventory
        if resource.zone
    }
    assert left == {
        *(("node", OTHER_ZONE), ("disk", OTHER_ZONE)),
        *(("controller", ZONE), ("disk", ZONE)),
    }


def test_regional_resources_are_shared_by_zones() -> None:
    address = InventoryItem(Address, "a", "s", zone="europe-west4")
    assert address.serves("europe-west4-a") and address.serves("europe-west4-b")
    assert not address.serves("us-central1-a")
    disk = InventoryItem(DataDisk, "d", "s", zone="europe-west4-a")
    assert disk.serves("europe-west4-a") and not disk.serves("europe-west4-b")
    assert InventoryItem(Bucket, "b", "s").serves("us-central1-a")


async def test_released_disk_is_retried_once(project: Project, null_cloud: LocalCloud) -> None:
    bench = project.stack("data_disks: [{size_gb: 20}]", zones=ZONE)
    await bench.provision()
    await delete_node(bench)
    fault = remote_control.add_fault(
        null_cloud,
        "error",
        method="google.cloud.compute.v1.Disks/Delete",
        code="INVALID_ARGUMENT",
        project=project.id,
    )
    assert (await bench.reopen().down()).leaks == ()
    assert remote_control.fault(null_cloud, fault["id"])["applied"] == 1
    assert await disks(bench) == []
