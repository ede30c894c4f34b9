"""The options of a TPU VM in a stack file, on the local cloud."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.locations import PROJECT, US_PARENT, US_ZONE
from tests.support.projects import provision
from tests.support.stack_jobs import request
from tpuctl.api import Tpuctl
from tpuctl.cloud.operations import compute_operation, long_operation
from tpuctl.errors import Conflict, NoCapacity, NotFound
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.plan import Action

MakeStack = Callable[..., Tpuctl]
BASE = "tpu-ubuntu2204-base"
WHERE = {"project": PROJECT, "zone": US_ZONE}


@pytest.fixture
def make_vm(make_stub_stack: MakeStack) -> MakeStack:
    """Like `make_stub_stack`, with additional options in `tpu`."""

    def make(tpu: str, **options: Any) -> Tpuctl:
        return make_stub_stack(runtime=f"{BASE}, {tpu}", zone=US_ZONE, **options)

    return make


async def node_of(stack: Tpuctl) -> Any:
    body = {"name": f"{US_PARENT}/nodes/{stack.stack.names.node}"}
    return await request(stack, "tpu", "get_node", body)


async def call_and_wait(stack: Tpuctl, client: str, method: str, **fields: Any) -> None:
    operation = await request(stack, client, method, **fields)
    await compute_operation(stack.cloud, operation, subject=method, seconds=120)


async def with_apis(stack: Tpuctl) -> Tpuctl:
    """Enable the APIs for resources that a test creates before `up`."""
    names = ("compute", "tpu", "storage", "iam")
    operation = await request(
        stack,
        "services",
        "batch_enable_services",
        {
            "parent": f"projects/{PROJECT}",
            "service_ids": [f"{name}.googleapis.com" for name in names],
        },
    )
    await asyncio.to_thread(operation.result, timeout=60)
    return stack


async def test_topology(make_vm: MakeStack) -> None:
    stack = make_vm("topology: 2x2")
    await provision(stack)
    node = await node_of(stack)
    assert (node.accelerator_config.type_.name, node.accelerator_config.topology) == ("V2", "2x2")
    assert (await provision(stack)).plan.is_empty, "the node matches the request"
    await stack.down(delete_bucket=True)


@pytest.mark.parametrize("capacity", ["spot", "preemptible"])
async def test_spot_and_preemptible_capacity(make_vm: MakeStack, capacity: str) -> None:
    stack = make_vm(f"capacity: {capacity}")
    await provision(stack)
    scheduling = (await node_of(stack)).scheduling_config
    assert {"spot": scheduling.spot, "preemptible": scheduling.preemptible}[capacity]
    assert not scheduling.reserved
    assert (await stack.plan()).plan.is_empty
    plain = make_vm("capacity: on-demand", name=stack.stack.name)
    with pytest.raises(Conflict, match="has capacity spot, the stack file says on-demand"):
        await provision(plain)
    await stack.down(delete_bucket=True)


async def test_reserved_capacity_needs_a_reservation(
    make_vm: MakeStack, null_cloud: server_process.LocalCloud
) -> None:
    stack = make_vm("capacity: reserved")
    with pytest.raises(NoCapacity, match=r"[Rr]eservation"):
        await provision(stack)
    with pytest.raises(NotFound):
        await node_of(stack)
    reservation = f"{US_PARENT}/reservations/ours"
    remote_control.change_settings(null_cloud, reservations={reservation: True})
    try:
        await provision(stack)
        assert (await node_of(stack)).scheduling_config.reserved
    finally:
        remote_control.change_settings(null_cloud, reservations={reservation: False})
    await stack.down(delete_bucket=True)


async def test_labels_tags_and_metadata_are_updated_and_foreign_ones_kept(
    make_vm: MakeStack,
) -> None:
    stack = make_vm(
        "metadata: {mine: before}",
        extra="labels: {team: korean}\nnetwork: {tags: [mine]}\n",
    )
    name = stack.stack.name
    await provision(stack)
    node = await node_of(stack)
    labels = {"tpuctl-stack": name, "tpuctl-user": stack.stack.user}
    assert node.labels == {**labels, "team": "korean"}
    assert {*node.tags} == {f"{name}-tpu", "mine"}
    assert node.metadata["mine"] == "before"
    account = f"{name}-tpu@{PROJECT}.iam.gserviceaccount.com"
    assert node.service_account.email == account

    labeled = {
        "name": node.name,
        "labels": {**node.labels, "theirs": "too"},
        "tags": [*node.tags, "theirs"],
        "metadata": {**node.metadata, "theirs": "too"},
    }
    mask = {"paths": ["labels", "tags", "metadata"]}
    operation = await request(stack, "tpu", "update_node", {"node": labeled, "update_mask": mask})
    await long_operation(stack.cloud, "tpu", operation.operation, subject="update", seconds=120)
    assert (await stack.plan()).plan.is_empty

    changed = make_vm(
        "metadata: {mine: after}",
        name=name,
        extra="labels: {team: english}\nnetwork: {tags: [others]}\n",
    )
    planned = (await changed.plan()).plan.change(f"node/{stack.stack.names.node}")
    assert (planned.action, planned.fields) == (Action.UPDATE, ("labels", "tags", "metadata"))
    await provision(changed)
    after = await node_of(stack)
    assert after.labels == {**labels, "team": "english", "theirs": "too"}
    assert {*after.tags} >= {f"{name}-tpu", "others", "theirs"}
    assert (after.metadata["mine"], after.metadata["theirs"]) == ("after", "too")
    assert after.id == node.id
    assert (await changed.plan()).plan.is_empty
    await changed.down(delete_bucket=True)


async def test_startup_script_runs_on_worker(make_stack: MakeStack) -> None:
    stack = make_stack(runtime=f"{BASE}, startup_script: begin.sh", zone=US_ZONE)
    script = '#!/bin/sh\necho "begun by $USER" > /tmp/begun\n'
    (stack.stack_file.parent / "begin.sh").write_text(script)
    if not stack.endpoint.runs_startup_scripts:
        pytest.skip("machines cannot be isolated from this computer's files")
    await stack.up()
    transport = (await stack.transports())[0]
    try:
        async with asyncio.timeout(60):
            while (begun := await transport.run(["cat", "/tmp/begun"])).exit_code:
                await asyncio.sleep(0.1)
    finally:
        await transport.close()
    assert begun.stdout == b"begun by root\n"
    assert (await stack.plan()).plan.is_empty
    await stack.down(delete_bucket=True)


async def test_data_disks_are_created_or_attached(make_vm: MakeStack) -> None:
    disk_request = {"name": "mine", "size_gb": 30, "type_": f"zones/{US_ZONE}/diskTypes/pd-ssd"}
    stack = make_vm("data_disks: [{size_gb: 20, type: pd-ssd}, {name: mine, mode: read-only}]")
    with pytest.raises(NotFound, match="has no disk mine"):
        await provision(await with_apis(stack))
    await call_and_wait(stack, "disks", "insert_unary", **WHERE, disk_resource=disk_request)
    await provision(stack)
    disk_name = stack.stack.names.disk(0)
    attached = {
        disk.source_disk.rpartition("/")[2]: disk.mode.name
        for disk in (await node_of(stack)).data_disks
    }
    assert attached == {disk_name: "READ_WRITE", "mine": "READ_ONLY"}
    disk = await request(stack, "disks", "get", **WHERE, disk=disk_name)
    assert (disk.size_gb, disk.type_.rpartition("/")[2]) == (20, "pd-ssd")
    assert disk.labels["tpuctl-stack"] == stack.stack.name
    assert (await stack.plan()).plan.is_empty

    more = make_vm("data_disks: [{size_gb: 20, type: pd-ssd}, {name: mine}]", name=stack.stack.name)
    with pytest.raises(Conflict, match="mine read-only, the stack file says"):
        await provision(more)

    down = await stack.down(delete_bucket=True)
    assert {
        resource.address: resource.state
        for resource in down.remaining
        if "disk/" in resource.address
    } == {
        f"disk/{disk_name}": "deleted",
        "disk/mine": "kept",
    }
    assert (await request(stack, "disks", "get", **WHERE, disk="mine")).size_gb == 30
    await call_and_wait(stack, "disks", "delete_unary", **WHERE, disk="mine")


async def test_subnetwork_without_external_addresses(make_vm: MakeStack) -> None:
    network = {"name": "quiet", "auto_create_subnetworks": False}
    stack = make_vm(
        "service_account: null",
        extra="network: {name: quiet, subnetwork: quiet-central, ssh: internal}\n",
    )
    await with_apis(stack)
    await call_and_wait(
        stack, "networks", "insert_unary", project=PROJECT, network_resource=network
    )
    region = {"project": PROJECT, "region": "us-central1"}
    subnetwork = {
        "name": "quiet-central",
        "network": f"projects/{PROJECT}/global/networks/quiet",
        "ip_cidr_range": "10.77.0.0/24",
    }
    await call_and_wait(
        stack, "subnetworks", "insert_unary", **region, subnetwork_resource=subnetwork
    )
    await provision(stack)
    node = await node_of(stack)
    assert node.network_config.network.endswith("/networks/quiet")
    assert node.network_config.subnetwork.endswith("/regions/us-central1/subnetworks/quiet-central")
    assert not node.network_config.enable_external_ips
    (endpoint,) = node.network_endpoints
    assert not endpoint.access_config.external_ip
    assert (await stack.plan()).plan.is_empty
    assert (await stack.down(delete_bucket=True)).leaks == ()
    await call_and_wait(stack, "subnetworks", "delete_unary", **region, subnetwork="quiet-central")
    await call_and_wait(stack, "networks", "delete_unary", project=PROJECT, network="quiet")


@pytest.mark.parametrize("tpu", ["capacity: spot", "topology: 2x2", "data_disks: [{size_gb: 20}]"])
async def test_node_options_with_queued_resource(make_vm: MakeStack, tpu: str) -> None:
    stack = make_vm(f"queue: true, metadata: {{mine: yes-it-is}}, {tpu}")
    await provision(stack)
    node = await node_of(stack)
    assert node.queued_resource
    assert node.metadata["mine"] == "yes-it-is"
    assert node.scheduling_config.spot == ("spot" in tpu)
    assert len(node.data_disks) == ("data_disks" in tpu)
    assert (await stack.plan()).plan.is_empty
    assert (await stack.down(delete_bucket=True)).leaks == ()
