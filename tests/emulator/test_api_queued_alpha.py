"""API v2alpha1: the official client over gRPC, and JSON for fields that the client lacks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2alpha1
from google.protobuf import field_mask_pb2

from tests.support.locations import PARENT, PROJECT, REGION
from tests.support.polling import async_until, until

NODE = f"{PARENT}/nodes/n"
NAME = f"{PARENT}/queuedResources/q"
RUNTIME = "tpu-ubuntu2204-base"
QueuedState = tpu_v2alpha1.QueuedResourceState.State
State = tpu_v2alpha1.Node.State

FLEX_PARENT = f"projects/{PROJECT}/locations/us-west4-a"
FLEX = f"/v2alpha1/{FLEX_PARENT}/queuedResources"


def alpha(cloud: Any) -> Any:
    return cloud.client(tpu_v2alpha1.TpuClient, "grpc")


def node(**fields: Any) -> tpu_v2alpha1.Node:
    return tpu_v2alpha1.Node(**{"accelerator_type": "v3-8", "runtime_version": RUNTIME, **fields})


def begin(client: Any, node_id: str = "n", requested: Any = None, **more: Any) -> Any:
    request = {"parent": PARENT, "node_id": node_id, "node": requested or node(), **more}
    return client.create_node(request=request, timeout=60)


def queue(client: Any, **fields: Any) -> Any:
    spec = fields.pop("spec", {"parent": PARENT, "node_id": "n", "node": node()})
    resource = tpu_v2alpha1.QueuedResource(tpu={"node_spec": [spec]}, **fields)
    request = {"parent": PARENT, "queued_resource_id": "q", "queued_resource": resource}
    return client.create_queued_resource(request=request, timeout=60).result(timeout=60)


def reached(client: Any, state: Any) -> Any:
    def resource_in_state() -> Any:
        resource = client.get_queued_resource(name=NAME, timeout=60)
        return resource if resource.state.state is state else None

    return until(resource_in_state, f"the queued resource to be {state}")


def test_nodes_are_shared_with_v2(cloud: Any) -> None:
    client, v2 = alpha(cloud), cloud.tpu()
    config = tpu_v2alpha1.AcceleratorConfig(
        type_=tpu_v2alpha1.AcceleratorConfig.Type.V3, topology="2x2"
    )
    key = f"projects/p/locations/{REGION}/keyRings/r/cryptoKeys/k"
    requested = tpu_v2alpha1.Node(
        accelerator_config=config,
        runtime_version=RUNTIME,
        labels={"a": "b"},
        boot_disk_config={"customer_encryption_key": {"kms_key_name": key}},
        autocheckpoint_enabled=True,
    )
    operation = begin(client, "n", requested)
    created = operation.result(timeout=60)
    existing = client.get_node(name=NODE, timeout=60)
    created.health = existing.health  # which the operation's response lacks
    assert created == existing
    assert created.state is State.READY
    assert created.accelerator_type == "v3-8"
    assert created.boot_disk_config.customer_encryption_key.kms_key_name == key
    assert created.autocheckpoint_enabled
    assert created.api_version is tpu_v2alpha1.Node.ApiVersion.V2_ALPHA1
    v2_node = v2.get_node(name=NODE, timeout=60)
    assert v2_node.id == created.id
    assert v2_node.network_endpoints[0].ip_address == created.network_endpoints[0].ip_address
    rows = list(client.list_nodes(parent=PARENT, timeout=60))
    assert rows == [created]
    mask = field_mask_pb2.FieldMask(paths=["labels", "description"])
    changed = tpu_v2alpha1.Node(name=NODE, labels={"c": "d"}, description="new")
    changed = client.update_node(node=changed, update_mask=mask, timeout=60).result(timeout=60)
    assert (dict(changed.labels), changed.description) == ({"c": "d"}, "new")
    assert changed.boot_disk_config.customer_encryption_key.kms_key_name == key
    for verb, state in (("stop", State.STOPPED), ("start", State.READY)):
        method = getattr(client, f"{verb}_node")
        operation = method(request={"name": NODE}, timeout=60)
        assert operation.result(timeout=60).state is state
    operation = client.delete_node(name=NODE, timeout=60)
    operation.result(timeout=60)
    with pytest.raises(exceptions.NotFound):
        v2.get_node(name=NODE, timeout=60)
    recreated = begin(client, "n")
    recreated = recreated.result(timeout=60)
    assert "boot_disk_config" not in recreated  # not inherited from the deleted node


def test_create_and_delete_are_idempotent_by_request_id(cloud: Any) -> None:
    client = alpha(cloud)
    first = begin(client, request_id="r1")
    second = begin(client, request_id="r1")
    assert second.operation.name == first.operation.name
    second.result(timeout=60)
    with pytest.raises(exceptions.AlreadyExists):
        begin(client, request_id="r2")
    with pytest.raises(exceptions.InvalidArgument):
        begin(client, "other", request_id="r1")
    request = {"name": NODE, "request_id": "r3"}
    first = client.delete_node(request=request, timeout=60)
    first.result(timeout=60)
    second = client.delete_node(request=request, timeout=60)
    assert second.operation.name == first.operation.name


def test_simulate_maintenance_event(cloud: Any) -> None:
    client = alpha(cloud)
    operation = begin(client, "n", node(accelerator_type="v3-32"))
    operation.result(timeout=60)

    def simulate(workers: list[str]) -> Any:
        request = {"name": NODE, "worker_ids": workers}
        operation = client.simulate_maintenance_event(request=request, timeout=60)
        return operation.result(timeout=60)

    after = simulate(["2", "3"])
    assert after.health is tpu_v2alpha1.Node.Health.HEALTHY
    worker = f"{NODE}/workers/2"  # the first of those named, as the API says
    assert [event[0] for event in cloud.host.events] == [worker, worker]
    assert [event[1] for event in cloud.host.events] == ["maintenance-event"] * 2
    with pytest.raises(exceptions.InvalidArgument):
        simulate(["4"])


def test_reservations_come_from_settings(cloud: Any) -> None:
    client = alpha(cloud)

    def names(parent: str) -> list[str]:
        rows = client.list_reservations(request={"parent": parent}, timeout=60)
        return [row.name.rpartition("/")[2] for row in rows]

    assert names(PARENT) == []
    far = f"projects/{PROJECT}/locations/us-central1-a"
    cloud.put_setting("reservations", [f"{PARENT}/reservations/r", f"{far}/reservations/far"])
    assert names(PARENT) == ["r"]
    everywhere = names(f"projects/{PROJECT}/locations/-")
    assert sorted(everywhere) == ["far", "r"]


def test_queued_resources_are_shared_with_v2(cloud: Any) -> None:
    client, v2 = alpha(cloud), cloud.tpu()
    params = {"node_count": 2, "node_id_prefix": "s", "workload_type": 1}
    spec = {"parent": PARENT, "multi_node_params": params, "node": node()}
    created = queue(client, spec=spec, best_effort={})
    assert created.state.state is QueuedState.ACCEPTED
    resource = reached(client, QueuedState.ACTIVE)
    assert [spec.node_id for spec in resource.tpu.node_spec] == ["s-0", "s-1"]
    assert "best_effort" in resource
    v2_resource = v2.get_queued_resource(name=NAME, timeout=60)
    assert [spec.node_id for spec in v2_resource.tpu.node_spec] == ["s-0", "s-1"]
    rows = list(client.list_queued_resources(parent=PARENT, timeout=60))
    assert rows == [resource]
    built = client.get_node(name=f"{PARENT}/nodes/s-1", timeout=60)
    assert built.multislice_node
    assert built.queued_resource == NAME
    request = {"name": NAME, "force": True}
    operation = client.delete_queued_resource(request=request, timeout=60)
    deleted = operation.result(timeout=60)
    assert deleted.name == NAME  # only this version documents that it returns the resource
    with pytest.raises(exceptions.NotFound):
        v2.get_queued_resource(name=NAME, timeout=60)
    assert cloud.host.running == set()


def test_node_id_and_multi_node_params_are_exclusive(cloud: Any) -> None:
    spec = {
        "parent": PARENT,
        "node_id": "n",
        "multi_node_params": {"node_count": 2},
        "node": node(),
    }
    with pytest.raises(exceptions.InvalidArgument) as caught:
        queue(alpha(cloud), spec=spec)
    assert "mutually exclusive" in caught.value.message


# Flex-start: over REST, since the client's messages have no fields for it.


def flex(parent: str = FLEX_PARENT, **fields: Any) -> dict[str, Any]:
    node = {"acceleratorType": "v5litepod-4", "runtimeVersion": "v2-alpha-tpuv5-lite"}
    spec = {"parent": parent, "nodeId": "n", "node": node}
    return {
        "tpu": {"nodeSpec": [spec]},
        "provisioningModel": "FLEX_START",
        "runDuration": {"maxRunDuration": "3600s"},
        **fields,
    }


def send(cloud: Any, verb: str, path: str, body: Any = None) -> Any:
    return cloud.request(verb, path, json=body)


async def reach(cloud: Any, *states: str) -> dict[str, Any]:
    async def resource_in_state() -> dict[str, Any] | None:
        resource: dict[str, Any] = (await asyncio.to_thread(send, cloud, "GET", f"{FLEX}/q")).json()
        return resource if resource.get("state", {}).get("state") in states else None

    resource: dict[str, Any] = await async_until(
        resource_in_state, f"the queued resource to be {states}"
    )
    return resource


async def outcome(cloud: Any, answer: Any) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    operation: dict[str, Any] = answer.json()
    async with asyncio.timeout(20):
        while not operation.get("done"):
            operation = (
                await asyncio.to_thread(send, cloud, "GET", f"/v2alpha1/{operation['name']}")
            ).json()
    return operation


async def test_flex_start_nodes_end_after_run_duration(cloud: Any) -> None:
    duration = {"maxRunDuration": "1.500s"}
    answer = await asyncio.to_thread(
        send, cloud, "POST", f"{FLEX}?queuedResourceId=q", flex(runDuration=duration)
    )
    operation = await outcome(cloud, answer)
    assert operation["response"]["state"]["state"] == "ACCEPTED"
    active = await reach(cloud, "ACTIVE", "SUSPENDED")
    assert active["state"]["state"] == "ACTIVE"
    assert active["provisioningModel"] == "FLEX_START"
    assert active["runDuration"]["maxRunDuration"] == "1.500s"
    assert active["runDuration"]["terminationTime"] > active["createTime"]
    assert cloud.host.running == {f"{FLEX_PARENT}/nodes/n/workers/0"}
    over = await reach(cloud, "SUSPENDED")
    assert over["state"]["stateInitiator"] == "SERVICE"
    assert cloud.host.running == set()
    answer = await asyncio.to_thread(send, cloud, "GET", f"/v2alpha1/{FLEX_PARENT}/nodes/n")
    assert answer.status_code == 404
    await outcome(cloud, await asyncio.to_thread(send, cloud, "DELETE", f"{FLEX}/q"))


async def test_flex_start_is_rejected_in_unsupported_zone(cloud: Any) -> None:
    parent = f"projects/{PROJECT}/locations/europe-west4-b"
    path = f"/v2alpha1/{parent}/queuedResources"
    answer = await asyncio.to_thread(
        send, cloud, "POST", f"{path}?queuedResourceId=q", flex(parent)
    )
    operation = await outcome(cloud, answer)  # accepted at first, rejected by the operation
    assert operation["error"]["code"] == 3
    assert operation["error"]["message"] == (
        'FLEX_START provisioning model is not supported for accelerator type "v5litepod-4" in '
        'location "europe-west4-b"'
    )
    assert (await asyncio.to_thread(send, cloud, "GET", f"{path}/q")).status_code == 404


@pytest.mark.parametrize(
    "fields",
    [
        {"runDuration": {}},
        {"runDuration": {"maxRunDuration": "604801s"}},
        {"runDuration": {"maxRunDuration": "0s"}},
        {"spot": {}},
        {"provisioningModel": "SOMETIMES"},
        {"runDuration": {"maxRunDuration": "an hour"}},
    ],
)
def test_invalid_flex_start_requests_are_rejected(cloud: Any, fields: dict[str, Any]) -> None:
    answer = send(cloud, "POST", f"{FLEX}?queuedResourceId=q", flex(**fields))
    assert answer.status_code == 400
    assert answer.json()["error"]["status"] == "INVALID_ARGUMENT"
    assert send(cloud, "GET", f"{FLEX}/q").status_code == 404


def test_flex_start_uses_preemptible_quota(cloud: Any) -> None:
    limit = "TPUV5sPreemptibleLitepodServingPerProjectPerZoneForTPUAPI"
    cloud.put_setting("quota", {limit: {"us-west4-a": 3}})
    answer = send(cloud, "POST", f"{FLEX}?queuedResourceId=q", flex())
    assert answer.status_code == 429
    assert limit in answer.json()["error"]["message"]


async def test_node_with_spot_provisioning_model(cloud: Any) -> None:
    body = {
        "acceleratorType": "v3-8",
        "runtimeVersion": RUNTIME,
        "schedulingConfig": {"provisioningModel": "SPOT"},
    }
    answer = await asyncio.to_thread(
        send, cloud, "POST", f"/v2alpha1/{PARENT}/nodes?nodeId=n", body
    )
    operation = await outcome(cloud, answer)
    assert operation["response"]["schedulingConfig"]["spot"] is True
