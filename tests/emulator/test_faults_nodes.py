"""Faults of nodes: stockouts, requests that fail, preemption and maintenance."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2

from tests.support.locations import PARENT
from tests.support.polling import async_until, until
from tpuctl.errors import NotFound
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud

NAME = f"{PARENT}/nodes/one"
SPOT = tpu_v2.Node(
    accelerator_type="v3-8",
    runtime_version="tpu-ubuntu2204-base",
    scheduling_config=tpu_v2.SchedulingConfig(spot=True),
)
State = tpu_v2.Node.State


def make_node(cloud: Any) -> Any:
    client = cloud.tpu()
    client.create_node(parent=PARENT, node_id="one", node=SPOT, timeout=60).result(timeout=60)
    return client


def preempted(client: Any) -> None:
    def is_preempted() -> bool:
        node = client.get_node(name=NAME, timeout=60)
        return bool(node.state is State.PREEMPTED)

    until(is_preempted, "the preemption of the node")


def happened(cloud: LocalCloud, fault: dict[str, Any]) -> None:
    def has_happened() -> bool:
        state = remote_control.fault(cloud, fault["id"])
        return bool(state["applied"] == 1)

    until(has_happened, f"the fault {fault['kind']!r}")


def test_stockout_in_one_zone(cloud: Any) -> None:
    client, handle = cloud.tpu(), cloud.local_cloud
    fault = remote_control.add_fault(handle, "stockout", zone="europe-west4-a", type="v3-8")

    def create(parent: str) -> Any:
        begun = client.create_node(parent=parent, node_id="one", node=SPOT, timeout=60)
        return begun.result(timeout=60)

    other_parent = "projects/local-project/locations/us-central1-a"
    assert create(other_parent).state is State.READY
    with pytest.raises(exceptions.ResourceExhausted, match="no more capacity in the zone"):
        create(PARENT)
    assert remote_control.fault(handle, fault["id"])["applied"] == 1
    with pytest.raises(exceptions.NotFound):
        client.get_node(name=NAME, timeout=60)
    assert create(PARENT).state is State.READY


async def test_queued_resource_fails(cloud: Any) -> None:
    client, handle = cloud.tpu(), cloud.local_cloud
    fault = await asyncio.to_thread(
        remote_control.add_fault, handle, "queue-failure", text="not today"
    )
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=PARENT, node_id="one", node=SPOT)
    wanted = tpu_v2.QueuedResource(
        tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]), spot=tpu_v2.QueuedResource.Spot()
    )
    name = f"{PARENT}/queuedResources/q"

    def request() -> None:
        client.create_queued_resource(
            parent=PARENT, queued_resource_id="q", queued_resource=wanted, timeout=60
        )

    def state() -> Any:
        return client.get_queued_resource(name=name, timeout=60).state

    await asyncio.to_thread(request)
    failed = tpu_v2.QueuedResourceState.State.FAILED
    await async_until(lambda: asyncio.to_thread(lambda: state().state is failed), "failing")
    assert (await asyncio.to_thread(state)).failed_data.error.message == "not today"
    assert (await asyncio.to_thread(remote_control.fault, handle, fault["id"]))["applied"] == 1


@pytest.mark.parametrize("node", ["one", NAME])
def test_node_is_preempted(cloud: Any, node: str) -> None:
    client, handle = make_node(cloud), cloud.local_cloud
    fault = remote_control.add_fault(handle, "preempt", node=node)
    preempted(client)
    happened(handle, fault)
    assert cloud.host.count_running() == 0
    assert remote_control.fault(handle, fault["id"])["error"] == ""


def test_node_is_maintained(cloud: Any) -> None:
    handle = cloud.local_cloud
    make_node(cloud)
    fault = remote_control.add_fault(handle, "maintenance", node="one")
    happened(handle, fault)
    assert remote_control.fault(handle, fault["id"])["error"] == ""


async def test_scheduled_fault_survives_restart(make_cloud: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("tpu", "compute")
    client, handle = await asyncio.to_thread(make_node, cloud), cloud.local_cloud
    fault = await asyncio.to_thread(
        remote_control.add_fault, handle, "preempt", node="one", seconds=86400
    )
    assert fault["applied"] == 0
    assert (await asyncio.to_thread(client.get_node, name=NAME, timeout=60)).state is State.READY
    faults = cloud.server.registry.faults
    faults.update(faults.get(fault["id"]), due=0)  # due now
    await cloud.server.close()
    again = await make_cloud()
    client = again.tpu()
    await asyncio.to_thread(preempted, client)
    await asyncio.to_thread(happened, again.local_cloud, fault)


def test_removed_fault_does_not_happen(cloud: Any) -> None:
    client, handle = make_node(cloud), cloud.local_cloud
    removed = remote_control.add_fault(handle, "preempt", node="one", seconds=0.2)
    remote_control.remove_fault(handle, removed["id"])
    last = remote_control.add_fault(handle, "maintenance", node="one", seconds=0.4)
    happened(handle, last)
    assert client.get_node(name=NAME, timeout=60).state is State.READY


def test_missing_node_is_reported(cloud: Any) -> None:
    handle = cloud.local_cloud
    with pytest.raises(NotFound, match="one"):
        remote_control.add_fault(handle, "preempt", node="one")
    assert remote_control.faults(handle) == []
    later = remote_control.add_fault(handle, "preempt", node="one", seconds=0.01)
    happened(handle, later)
    state = remote_control.fault(handle, later["id"])
    assert "Node one not found" in state["error"]
