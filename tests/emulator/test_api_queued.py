"""Queued resources in API v2, with the official client over both transports."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2
from google.protobuf import duration_pb2, timestamp_pb2

from tests.support.locations import PARENT, PROJECT, ZONE
from tests.support.polling import until
from tpuctl.emulator.machines.servers.metadata_tree import metadata_tree

NAME = f"{PARENT}/queuedResources/q"
NODE = f"{PARENT}/nodes/n"
RUNTIME = "tpu-ubuntu2204-base"
QueuedState = tpu_v2.QueuedResourceState.State
Initiator = tpu_v2.QueuedResourceState.StateInitiator
Node = tpu_v2.Node

both = pytest.mark.parametrize("transport", ["grpc", "rest"])


def node(**fields: Any) -> tpu_v2.Node:
    return tpu_v2.Node(**{"accelerator_type": "v3-8", "runtime_version": RUNTIME, **fields})


def spec(**fields: Any) -> tpu_v2.QueuedResource.Tpu.NodeSpec:
    if "multislice_params" not in fields:
        fields = {"node_id": "n", **fields}
    return tpu_v2.QueuedResource.Tpu.NodeSpec(**{"parent": PARENT, "node": node(), **fields})


def queued_resource(*specs: Any, **fields: Any) -> tpu_v2.QueuedResource:
    tpu = tpu_v2.QueuedResource.Tpu(node_spec=list(specs) or [spec()])
    return tpu_v2.QueuedResource(tpu=tpu, **fields)


def begin(client: Any, resource: Any = None, queued_id: str = "q", **more: Any) -> Any:
    request = {
        "parent": PARENT,
        "queued_resource_id": queued_id,
        "queued_resource": queued_resource() if resource is None else resource,
        **more,
    }
    return client.create_queued_resource(request=request, timeout=60)


def create(client: Any, resource: Any = None, queued_id: str = "q") -> Any:
    return begin(client, resource, queued_id).result(timeout=60)


def delete(client: Any, *, force: bool = False) -> Any:
    request = {"name": NAME, "force": force}
    return client.delete_queued_resource(request=request, timeout=60).result(timeout=60)


def get(client: Any, name: str = NAME) -> Any:
    return client.get_queued_resource(name=name, timeout=60)


def reached(client: Any, *states: Any) -> Any:
    """Wait until the queued resource is in one of the states; return it."""

    def resource_in_state() -> Any:
        resource = get(client)
        return resource if resource.state.state in states else None

    return until(resource_in_state, f"the queued resource to be {states}")


def nodes(client: Any) -> dict[str, Any]:
    node_list = list(client.list_nodes(parent=PARENT, timeout=60))
    return {node.name.rpartition("/")[2]: node for node in node_list}


def sold_out(cloud: Any) -> Any:
    return cloud.in_loop(
        cloud.server.registry.faults.add, {"kind": "stockout", "zone": ZONE, "times": "unlimited"}
    )


@both
def test_queued_resource_lifecycle(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    cloud.host.gate.clear()
    operation = begin(client, queued_resource(spot=tpu_v2.QueuedResource.Spot()))
    assert operation.operation.name.startswith(f"{PARENT}/operations/")
    created = operation.result(timeout=60)
    assert created.name == NAME
    assert created.state.state is QueuedState.ACCEPTED
    assert "accepted_data" in created.state
    resource = reached(client, QueuedState.PROVISIONING)
    until(lambda: "boot" in cloud.host.called, "the boot")
    assert nodes(client)["n"].state is Node.State.CREATING
    cloud.in_loop(cloud.host.gate.set)
    resource = reached(client, QueuedState.ACTIVE)
    assert "active_data" in resource.state
    assert "spot" in resource
    assert resource.create_time.timestamp() > 0
    assert [spec.node_id for spec in resource.tpu.node_spec] == ["n"]
    built = nodes(client)["n"]
    assert built.state is Node.State.READY
    assert built.queued_resource == NAME
    assert built.scheduling_config.spot
    assert not built.multislice_node
    assert cloud.host.running == {f"{NODE}/workers/0"}
    delete(client, force=True)
    assert nodes(client) == {}
    assert cloud.host.running == set()
    with pytest.raises(exceptions.NotFound):
        get(client)


@both
def test_list_queued_resources_by_zone_or_all(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    sold_out(cloud)
    for index in range(3):
        resource = queued_resource(spec(node_id=f"n{index}"))
        create(client, resource, f"q{index}")

    def names(zone: str) -> list[str]:
        request = {"parent": f"projects/{PROJECT}/locations/{zone}", "page_size": 2}
        rows = client.list_queued_resources(request=request, timeout=60)
        return [row.name.rpartition("/")[2] for row in rows]

    assert names(ZONE) == ["q0", "q1", "q2"]
    assert names("-") == ["q0", "q1", "q2"]
    assert names("us-central1-a") == []


def test_queued_resource_waits_for_capacity(cloud: Any) -> None:
    client = cloud.tpu()
    fault = sold_out(cloud)
    create(client)
    reached(client, QueuedState.WAITING_FOR_RESOURCES)
    time.sleep(0.3)  # several capacity checks
    resource = get(client)
    assert resource.state.state is QueuedState.WAITING_FOR_RESOURCES
    assert cloud.host.called == []
    assert nodes(client) == {}
    assert cloud.in_loop(cloud.server.registry.faults.get, fault.id).get("applied") == 1
    cloud.in_loop(cloud.server.registry.faults.remove, fault.id)
    reached(client, QueuedState.ACTIVE)
    assert nodes(client)["n"].state is Node.State.READY


def test_queue_fail_fault_fails_request(cloud: Any) -> None:
    client = cloud.tpu()
    text = "Quota 'TPUV3s' exhausted."
    cloud.in_loop(
        cloud.server.registry.faults.add,
        {"kind": "queue-failure", "zone": ZONE, "text": text, "code": "RESOURCE_EXHAUSTED"},
    )
    create(client)
    resource = reached(client, QueuedState.FAILED, QueuedState.ACTIVE)
    assert resource.state.state is QueuedState.FAILED
    assert resource.state.failed_data.error.code == 8
    assert resource.state.failed_data.error.message == text
    assert cloud.host.called == []
    delete(client)


async def test_stuck_request_stays_in_provisioning_until_fault_is_removed(cloud: Any) -> None:
    client = cloud.tpu()
    faults = cloud.server.registry.faults
    fault = faults.add({"kind": "stuck-provisioning", "zone": ZONE})
    await asyncio.to_thread(create, client)
    await asyncio.to_thread(reached, client, QueuedState.PROVISIONING)
    assert (await asyncio.to_thread(nodes, client))["n"].state is Node.State.CREATING
    assert faults.get(fault.id).get("applied") == 1
    faults.remove(fault.id)
    await asyncio.to_thread(reached, client, QueuedState.ACTIVE)
    assert (await asyncio.to_thread(nodes, client))["n"].state is Node.State.READY


async def test_provisioning_failure_suspends_request_before_it_fails(make_cloud: Any) -> None:
    """As a public log of 2026 has it: five minutes from PROVISIONING to FAILED."""
    cloud = await make_cloud(pace="quick")
    cloud.enable("tpu", "compute")
    client = cloud.tpu()
    cloud.server.registry.faults.add({"kind": "provisioning-failure", "zone": ZONE})
    await asyncio.to_thread(create, client)
    await asyncio.to_thread(reached, client, QueuedState.PROVISIONING)
    suspending = await asyncio.to_thread(
        reached, client, QueuedState.SUSPENDING, QueuedState.FAILED
    )
    assert suspending.state.state is QueuedState.SUSPENDING
    assert suspending.state.state_initiator.name == "SERVICE"
    failed = await asyncio.to_thread(reached, client, QueuedState.FAILED)
    error = failed.state.failed_data.error
    assert (error.code, error.message) == (13, "an internal error has occurred")
    assert await asyncio.to_thread(nodes, client) == {}


def test_stuck_request_can_be_deleted(cloud: Any) -> None:
    client = cloud.tpu()
    cloud.in_loop(cloud.server.registry.faults.add, {"kind": "stuck-provisioning"})
    create(client)
    reached(client, QueuedState.PROVISIONING)
    delete(client, force=True)
    assert nodes(client) == {}


def test_duration_is_shown_as_the_moment_when_it_ends(cloud: Any) -> None:
    """Google's live test of its sample asserts it."""
    client = cloud.tpu()
    policy = tpu_v2.QueuedResource.QueueingPolicy(
        valid_until_duration=duration_pb2.Duration(seconds=3600)
    )
    create(client, queued_resource(queueing_policy=policy))
    resource = get(client)
    assert "valid_until_duration" not in resource.queueing_policy
    waiting = resource.queueing_policy.valid_until_time - resource.create_time
    assert abs(waiting.total_seconds() - 3600) < 5


def test_request_fails_after_valid_until(cloud: Any) -> None:
    client = cloud.tpu()
    sold_out(cloud)
    policy = tpu_v2.QueuedResource.QueueingPolicy(
        valid_until_duration=duration_pb2.Duration(nanos=300_000_000)
    )
    create(client, queued_resource(queueing_policy=policy))
    resource = reached(client, QueuedState.FAILED)
    assert "valid until" in resource.state.failed_data.error.message
    assert cloud.host.called == []


def test_request_waits_for_valid_after(cloud: Any) -> None:
    client = cloud.tpu()
    late = timestamp_pb2.Timestamp()
    late.FromSeconds(4_000_000_000)
    policy = tpu_v2.QueuedResource.QueueingPolicy(valid_after_time=late)
    create(client, queued_resource(queueing_policy=policy))
    time.sleep(0.3)
    assert get(client).state.state is QueuedState.ACCEPTED
    delete(client)  # without force: it has no nodes
    with pytest.raises(exceptions.NotFound):
        get(client)


def test_multislice_nodes_start_together(cloud: Any) -> None:
    client = cloud.tpu()
    params = tpu_v2.QueuedResource.Tpu.NodeSpec.MultisliceParams(node_count=3, node_id_prefix="s")
    cloud.host.gate.clear()
    create(client, queued_resource(spec(multislice_params=params)))
    until(lambda: cloud.host.called.count("boot") == 3, "three boots")
    nodes_by_name = nodes(client)
    assert sorted(nodes_by_name) == ["s-0", "s-1", "s-2"]
    assert {node.state for node in nodes_by_name.values()} == {Node.State.CREATING}
    cloud.in_loop(cloud.host.gate.set)
    resource = reached(client, QueuedState.ACTIVE)
    assert [spec.node_id for spec in resource.tpu.node_spec] == ["s-0", "s-1", "s-2"]
    nodes_by_name = nodes(client)
    assert {node.state for node in nodes_by_name.values()} == {Node.State.READY}
    assert all(node.multislice_node for node in nodes_by_name.values())
    assert cloud.host.count_running() == 3


def test_metadata_tells_slices_of_each_other(cloud: Any) -> None:
    client = cloud.tpu()
    params = tpu_v2.QueuedResource.Tpu.NodeSpec.MultisliceParams(node_count=2, node_id_prefix="s")
    create(client, queued_resource(spec(multislice_params=params)))
    reached(client, QueuedState.ACTIVE)
    nodes_by_name = nodes(client)
    address = nodes_by_name["s-0"].network_endpoints[0].ip_address
    for index, node_id in enumerate(("s-0", "s-1")):
        machine = cloud.host.specs[f"projects/{PROJECT}/locations/{ZONE}/nodes/{node_id}/workers/0"]
        lines = metadata_tree(machine, "host", {}, {})["instance"]["attributes"]["tpu-env"]
        assert [line for line in lines.splitlines() if line.startswith("MEGASCALE_")] == [
            f"MEGASCALE_COORDINATOR_ADDRESS: '{address}'",
            "MEGASCALE_NUM_SLICES: '2'",
            "MEGASCALE_PORT: '8080'",
            f"MEGASCALE_SLICE_ID: '{index}'",
        ]


def test_node_names_default_to_queued_resource_id(cloud: Any) -> None:
    client = cloud.tpu()
    params = tpu_v2.QueuedResource.Tpu.NodeSpec.MultisliceParams(node_count=2)
    create(client, queued_resource(spec(multislice_params=params)))
    reached(client, QueuedState.ACTIVE)
    assert sorted(nodes(client)) == ["q-0", "q-1"]


def test_failed_boot_fails_whole_request(cloud: Any) -> None:
    client = cloud.tpu()
    cloud.host.broken = "no image for this runtime"
    create(client, queued_resource(spec(), spec(node_id="m")))
    resource = reached(client, QueuedState.FAILED)
    assert "no image for this runtime" in resource.state.failed_data.error.message
    assert nodes(client) == {}
    assert cloud.host.reserved == {}


@both
def test_delete_active_request_requires_force(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    create(client)
    reached(client, QueuedState.ACTIVE)
    with pytest.raises(exceptions.BadRequest) as caught:
        delete(client)
    assert "delete is not supported while in state ACTIVE" in caught.value.message
    assert get(client).state.state is QueuedState.ACTIVE
    assert cloud.host.count_running() == 1


def test_force_delete_while_provisioning(cloud: Any) -> None:
    client = cloud.tpu()
    cloud.host.gate.clear()
    create(client)
    until(lambda: "boot" in cloud.host.called, "the boot")
    request = {"name": NAME, "force": True}
    operation = client.delete_queued_resource(request=request, timeout=60)
    assert get(client).state.state is QueuedState.DELETING
    cloud.in_loop(cloud.host.gate.set)
    operation.result(timeout=60)
    assert nodes(client) == {}
    assert cloud.host.running == set()


def test_deleting_node_suspends_request(cloud: Any) -> None:
    client = cloud.tpu()
    create(client)
    reached(client, QueuedState.ACTIVE)
    operation = client.delete_node(name=NODE, timeout=60)
    operation.result(timeout=60)
    resource = reached(client, QueuedState.SUSPENDED)
    assert resource.state.state_initiator is Initiator.USER
    assert "suspended_data" in resource.state
    delete(client)


async def test_preemption_suspends_request_and_deletes_nodes(cloud: Any) -> None:
    client = cloud.tpu()
    spot = tpu_v2.QueuedResource.Spot()
    await asyncio.to_thread(create, client, queued_resource(spec(), spec(node_id="m"), spot=spot))
    await asyncio.to_thread(reached, client, QueuedState.ACTIVE)
    await cloud.server.registry.service("tpu").preempt(NODE)
    resource = await asyncio.to_thread(reached, client, QueuedState.SUSPENDED)
    assert resource.state.state_initiator is Initiator.SERVICE
    remaining = await asyncio.to_thread(nodes, client)
    assert {name: node.state for name, node in remaining.items()} == {"n": Node.State.PREEMPTED}
    assert cloud.host.running == set()
    await asyncio.to_thread(delete, client)
    assert await asyncio.to_thread(nodes, client) == {}


def test_reset_reboots_nodes_and_keeps_disks(cloud: Any) -> None:
    client = cloud.tpu()
    create(client)
    reached(client, QueuedState.ACTIVE)
    before = nodes(client)
    boots = cloud.host.called.count("boot")
    operation = client.reset_queued_resource(request={"name": NAME}, timeout=60)
    after_reset = operation.result(timeout=60)
    assert after_reset.state.state is QueuedState.ACTIVE
    assert nodes(client) == before
    assert cloud.host.called.count("boot") == boots + 1
    assert cloud.host.discarded == []
    assert cloud.host.count_running() == 1


def test_failed_reset_leaves_node_unhealthy(cloud: Any) -> None:
    client = cloud.tpu()
    create(client)
    reached(client, QueuedState.ACTIVE)
    cloud.host.broken = "no image"
    operation = client.reset_queued_resource(request={"name": NAME})
    with pytest.raises(exceptions.GoogleAPICallError, match="no image"):
        operation.result(timeout=60)
    [remaining] = nodes(client).values()
    assert (remaining.state, remaining.health) == (Node.State.READY, Node.Health.TIMEOUT)


def test_reset_requires_active_state(cloud: Any) -> None:
    client = cloud.tpu()
    sold_out(cloud)
    create(client)
    reached(client, QueuedState.WAITING_FOR_RESOURCES)
    with pytest.raises(exceptions.BadRequest, match="reset is not supported"):
        client.reset_queued_resource(request={"name": NAME})


def test_node_specs_have_googles_defaults(cloud: Any) -> None:
    client = cloud.tpu()
    create(client)
    resource = reached(client, QueuedState.ACTIVE)
    number = cloud.project_number
    [node_spec] = resource.tpu.node_spec
    assert node_spec.parent == f"projects/{number}/locations/{ZONE}"
    assert node_spec.node.queued_resource == f"{node_spec.parent}/queuedResources/q"
    assert "scheduling_config" in node_spec.node
    assert "shielded_instance_config" in node_spec.node


@both
def test_create_is_idempotent_by_request_id(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    first = begin(client, request_id="r1")
    second = begin(client, request_id="r1")
    assert second.operation.name == first.operation.name
    with pytest.raises(exceptions.Conflict):
        begin(client)
    with pytest.raises(exceptions.BadRequest):
        begin(client, None, "other", request_id="r1")


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        (queued_resource(spec(node=node(accelerator_type="v4-8"))), "could not be found"),
        (queued_resource(spec(node_id="Bad")), 'node id "Bad" is invalid'),
        (queued_resource(spec(), spec()), "same id"),
        (queued_resource(spec(parent=f"projects/{PROJECT}/locations/us-central1-a")), "parent"),
        (queued_resource(spec(node_id="")), "node id or multislice"),
        (tpu_v2.QueuedResource(), "at least one node"),
        (
            queued_resource(
                spec(
                    multislice_params=tpu_v2.QueuedResource.Tpu.NodeSpec.MultisliceParams(
                        node_count=1
                    )
                )
            ),
            "greater than 1",
        ),
    ],
)
def test_invalid_requests_are_rejected_immediately(
    cloud: Any, resource: Any, expected: str
) -> None:
    client = cloud.tpu()
    with pytest.raises(exceptions.BadRequest) as caught:
        begin(client, resource)
    assert expected in caught.value.message
    with pytest.raises(exceptions.NotFound):
        get(client)


def test_existing_node_name_is_rejected(cloud: Any) -> None:
    client = cloud.tpu()

    client.create_node(parent=PARENT, node_id="n", node=node(), timeout=60).result(timeout=60)
    with pytest.raises(exceptions.Conflict):
        begin(client)
    assert nodes(client)["n"].state is Node.State.READY


def test_concurrently_created_node_is_not_deleted(cloud: Any) -> None:
    client = cloud.tpu()
    fault = sold_out(cloud)
    create(client)
    reached(client, QueuedState.WAITING_FOR_RESOURCES)
    far = f"projects/{PROJECT}/locations/us-central1-a"

    def make(parent: str) -> Any:
        operation = client.create_node(parent=parent, node_id="n", node=node(), timeout=60)
        return operation.result(timeout=60)

    with pytest.raises(exceptions.ResourceExhausted):
        make(PARENT)  # rejected too: no capacity
    make(far)
    cloud.in_loop(cloud.server.registry.faults.remove, fault.id)
    reached(client, QueuedState.ACTIVE)
    delete(client, force=True)
    assert cloud.host.running == {f"{far}/nodes/n/workers/0"}


def test_reservation_must_exist(cloud: Any) -> None:
    client = cloud.tpu()
    reservation = f"{PARENT}/reservations/r"
    resource = queued_resource(reservation_name=reservation)
    with pytest.raises(exceptions.NotFound) as caught:
        create(client, resource)
    assert "Reservation not found" in caught.value.message
    with pytest.raises(exceptions.NotFound):
        get(client)
    cloud.put_setting("reservations", [reservation])
    create(client, resource)
    queued = reached(client, QueuedState.ACTIVE)
    assert queued.reservation_name == reservation
    assert nodes(client)["n"].scheduling_config.reserved
