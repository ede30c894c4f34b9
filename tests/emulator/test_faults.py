"""Each kind of fault with the official clients, and its use count."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.cloud import compute_v1, tpu_v2
from google.protobuf import json_format

from tests.support.locations import PARENT, PROJECT, ZONE
from tpuctl.local_cloud import remote_control

NODE = tpu_v2.Node(accelerator_type="v3-8", runtime_version="tpu-ubuntu2204-base")

both = pytest.mark.parametrize("transport", ["grpc", "rest"])


async def add(cloud: Any, kind: str, **fields: Any) -> str:
    fault = await asyncio.to_thread(remote_control.add_fault, cloud.local_cloud, kind, **fields)
    return str(fault["id"])


async def used(cloud: Any, fault_id: str) -> int:
    return int(
        (await asyncio.to_thread(remote_control.fault, cloud.local_cloud, fault_id))["applied"]
    )


def create(client: Any, node_id: str = "one") -> Any:
    return client.create_node(parent=PARENT, node_id=node_id, node=NODE, timeout=60)


def nodes(client: Any) -> list[str]:
    return [node.name.rpartition("/")[2] for node in client.list_nodes(parent=PARENT, timeout=60)]


def networks(cloud: Any) -> Any:
    return cloud.keep(compute_v1.NetworksClient(**cloud.options()))


@both
async def test_unavailable_applies_before_the_action(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    fault = await add(cloud, "unavailable", method="CreateNode", times=2)
    for count in (1, 2):
        with pytest.raises(exceptions.ServiceUnavailable):
            await asyncio.to_thread(create, client)
        assert await used(cloud, fault) == count
    assert await asyncio.to_thread(nodes, client) == []
    await asyncio.to_thread(create, client)
    assert await asyncio.to_thread(nodes, client) == ["one"]
    assert await used(cloud, fault) == 2


@both
async def test_lost_response_keeps_the_action(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    fault = await add(cloud, "drop-response", method="google.cloud.tpu.v2.Tpu/CreateNode")
    with pytest.raises((exceptions.ServiceUnavailable, requests.ConnectionError)) as caught:
        await asyncio.to_thread(create, client)
    if transport == "grpc":
        assert "Socket closed" in str(caught.value)
    assert await asyncio.to_thread(nodes, client) == ["one"]
    with pytest.raises((exceptions.AlreadyExists, exceptions.Conflict)):
        await asyncio.to_thread(create, client)
    assert await used(cloud, fault) == 1


@both
async def test_dropped_request_has_no_effect(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    fault = await add(cloud, "drop-request", method="CreateNode")
    with pytest.raises((exceptions.ServiceUnavailable, requests.ConnectionError)):
        await asyncio.to_thread(create, client)
    assert await asyncio.to_thread(nodes, client) == []
    assert await used(cloud, fault) == 1


async def test_lost_response_sends_no_bytes(cloud: Any) -> None:
    await add(cloud, "drop-response", method="buckets.insert")
    reader, writer = await asyncio.open_connection("127.0.0.1", cloud.server.port)
    body = b'{"name": "made"}'
    writer.write(
        b"POST /storage/v1/b?project=local-project HTTP/1.1\r\nHost: x\r\n"
        b"Authorization: Bearer " + cloud.token.encode() + b"\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    assert cloud.server.store.get("bucket", "made") is not None


@both
async def test_at_applies_to_the_nth_request(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    fault = await add(cloud, "unavailable", method="ListNodes", at=3)
    assert await asyncio.to_thread(nodes, client) == []
    assert await asyncio.to_thread(nodes, client) == []
    with pytest.raises(exceptions.ServiceUnavailable):
        await asyncio.to_thread(nodes, client)
    assert await asyncio.to_thread(nodes, client) == []
    fault_state = await asyncio.to_thread(remote_control.fault, cloud.local_cloud, fault)
    assert (fault_state["matched"], fault_state["applied"], fault_state["exhausted"]) == (
        3,
        1,
        True,
    )


async def test_unlimited_applies_until_removed(cloud: Any) -> None:
    client = cloud.tpu()
    fault = await add(cloud, "unavailable", times="unlimited")
    for _ in range(5):
        with pytest.raises(exceptions.ServiceUnavailable):
            await asyncio.to_thread(nodes, client)
    removed = await asyncio.to_thread(remote_control.remove_fault, cloud.local_cloud, fault)
    assert (removed["applied"], removed["exhausted"]) == (5, False)
    assert await asyncio.to_thread(nodes, client) == []
    assert await asyncio.to_thread(remote_control.faults, cloud.local_cloud) == []


@both
async def test_an_error_of_any_code_and_text(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    await add(cloud, "error", method="GetNode", code="ABORTED", text="try it again")
    with pytest.raises((exceptions.Aborted, exceptions.Conflict)) as caught:
        await asyncio.to_thread(client.get_node, name=f"{PARENT}/nodes/x", timeout=60)
    assert "try it again" in str(caught.value)
    await add(cloud, "error", method="CreateNode", google_error="location-policy")
    with pytest.raises((exceptions.PermissionDenied, exceptions.Forbidden)) as denied:
        await asyncio.to_thread(create, client)
    assert f"Permission denied on 'locations/{ZONE}' (or it may not exist)." in str(denied.value)
    assert denied.value.reason == "LOCATION_POLICY_VIOLATED"
    assert denied.value.metadata["location"] == ZONE


@both
async def test_zone_quota_error_matches_google(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    fault = await add(cloud, "quota", zone=ZONE, limit="TPUV3", number=4)
    with pytest.raises((exceptions.ResourceExhausted, exceptions.TooManyRequests)) as caught:
        await asyncio.to_thread(create, client)
    assert f"Quota limit 'TPUV3' has been exceeded. Limit: 4 in zone {ZONE}." in str(caught.value)
    (detail,) = caught.value.details
    if transport == "grpc":
        detail = json_format.MessageToDict(detail)
    number = cloud.server.registry.projects.find(PROJECT)["number"]
    (violation,) = detail["violations"]
    assert violation["subject"] == f"project:{number}"
    assert violation["description"] == f"Quota 'TPUV3' exhausted. Limit 4 in zone {ZONE}"
    assert await asyncio.to_thread(nodes, client) == []  # it applies only to creations
    assert await used(cloud, fault) == 1


async def test_fault_applies_only_to_its_zone(cloud: Any) -> None:
    client = cloud.tpu()
    other_requests = [
        await add(cloud, "quota", zone="us-central1-b"),
        await add(cloud, "unavailable", project="another-project"),
        await add(cloud, "unavailable", method="CreateNode", name="two"),
        await add(cloud, "quota", type="v2-8"),
        await add(cloud, "unavailable", method="storage.*"),
    ]
    await asyncio.to_thread(create, client)
    assert [await used(cloud, fault) for fault in other_requests] == [0] * 5
    await asyncio.to_thread(remote_control.remove_all_faults, cloud.local_cloud)
    for match in ({"name": "two"}, {"type": "v3-8"}, {"zone": "europe-*"}, {"project": PROJECT}):
        fault = await add(cloud, "deny", method="CreateNode", **match)
        with pytest.raises(exceptions.PermissionDenied):
            await asyncio.to_thread(create, client, "two")
        assert await used(cloud, fault) == 1, match
        await asyncio.to_thread(remote_control.remove_all_faults, cloud.local_cloud)


async def test_mutating_matches_all_mutations(cloud: Any) -> None:
    client, storage = cloud.tpu(), cloud.storage()
    await add(cloud, "deny", method="mutating", times="unlimited")
    assert await asyncio.to_thread(nodes, client) == []
    assert await asyncio.to_thread(lambda: list(storage.list_buckets(timeout=60))) == []
    with pytest.raises(exceptions.PermissionDenied):
        await asyncio.to_thread(create, client)
    with pytest.raises(exceptions.Forbidden):
        await asyncio.to_thread(storage.create_bucket, "a-bucket", timeout=60)
    with pytest.raises(exceptions.Forbidden):
        await asyncio.to_thread(networks(cloud).delete_unary, project=PROJECT, network="default")


async def test_storage_methods_have_json_api_names(cloud: Any) -> None:
    bucket = cloud.storage().bucket("a-bucket")
    await asyncio.to_thread(bucket.create, timeout=60)
    blob = bucket.blob("a/b")

    def upload() -> None:
        blob.upload_from_string("content", timeout=60, retry=None)

    def download() -> bytes:
        content: bytes = blob.download_as_bytes(timeout=60, retry=None)
        return content

    steps = {
        "storage.objects.insert": upload,
        "storage.objects.get": download,
        "storage.buckets.getIamPolicy": lambda: bucket.get_iam_policy(timeout=60, retry=None),
        "storage.objects.delete": lambda: blob.delete(timeout=60, retry=None),
    }
    for method, step in steps.items():
        fault = await add(cloud, "unavailable", method=method, text="struck")
        with pytest.raises(exceptions.ServiceUnavailable) as caught:
            await asyncio.to_thread(step)
        assert "struck" in str(caught.value)
        assert await used(cloud, fault) == 1
        await asyncio.to_thread(step)
    fault = await add(cloud, "unavailable", name="a-bucket")
    with pytest.raises(exceptions.ServiceUnavailable):
        await asyncio.to_thread(upload)
    assert await used(cloud, fault) == 1


async def test_lost_upload_response_keeps_object(cloud: Any) -> None:
    bucket = cloud.storage().bucket("a-bucket")
    await asyncio.to_thread(bucket.create, timeout=60)
    fault = await add(cloud, "drop-response", method="storage.objects.insert")
    blob = bucket.blob("lock")

    def take() -> None:
        blob.upload_from_string("mine", if_generation_match=0, timeout=60)

    with pytest.raises(exceptions.PreconditionFailed):  # the client retries automatically
        await asyncio.to_thread(take)
    assert await used(cloud, fault) == 1
    assert await asyncio.to_thread(blob.download_as_bytes, timeout=60) == b"mine"


async def test_large_upload_receives_error(cloud: Any) -> None:
    await asyncio.to_thread(cloud.storage().create_bucket, "a-bucket", timeout=60)
    await add(cloud, "deny", method="storage.objects.insert")
    path = "/upload/storage/v1/b/a-bucket/o?uploadType=media&name=large"
    answer = await asyncio.to_thread(cloud.request, "POST", path, data=b"x" * (8 << 20))
    assert answer.status_code == 403
    assert answer.json()["error"]["errors"][0]["reason"] == "forbidden"


async def test_compute_errors_have_legacy_format(cloud: Any) -> None:
    client = networks(cloud)
    fault = await add(cloud, "error", method="google.cloud.compute.v1.Networks/*", http=418)
    answer = await asyncio.to_thread(
        cloud.request, "GET", f"/compute/v1/projects/{PROJECT}/global/networks"
    )
    assert answer.status_code == 418
    assert answer.json()["error"]["errors"][0]["domain"] == "global"
    assert await used(cloud, fault) == 1
    await add(cloud, "error", google_error="compute-quota", method="Networks/Insert", number=5)
    wanted = compute_v1.Network(name="n", auto_create_subnetworks=True)
    with pytest.raises(exceptions.Forbidden) as caught:
        await asyncio.to_thread(
            client.insert_unary, project=PROJECT, network_resource=wanted, timeout=60
        )
    assert "Quota 'CPUS' exceeded." in str(caught.value)


async def test_operation_fails(cloud: Any) -> None:
    client = cloud.tpu()
    fault = await add(
        cloud, "error", method="CreateNode", google_error="reservation", fail_operation=True
    )
    operation = await asyncio.to_thread(create, client)
    with pytest.raises(exceptions.NotFound, match="Reservation not found"):
        await asyncio.to_thread(operation.result, timeout=60)
    assert await used(cloud, fault) == 1
    assert await asyncio.to_thread(nodes, client) == []
    assert "boot" not in cloud.host.called


async def test_slow_operation_takes_longer(make_cloud: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("tpu", "compute")
    fault = await add(cloud, "slow", method="CreateNode", seconds=3600)
    client = cloud.tpu()
    operation = await asyncio.to_thread(create, client)
    assert await used(cloud, fault) == 1
    record = cloud.server.registry.operations.get(operation.operation.name)
    assert record.due - record.started == pytest.approx(3600)
    assert not record.is_done


@both
async def test_slow_call_is_delayed(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    fault = await add(cloud, "slow", method="ListNodes", seconds=3600)

    def create() -> None:
        client.list_nodes(parent=PARENT, timeout=0.5)

    with pytest.raises((exceptions.DeadlineExceeded, requests.ReadTimeout)):
        await asyncio.to_thread(create)
    assert await used(cloud, fault) == 1
    assert await asyncio.to_thread(nodes, client) == []
    await add(cloud, "slow", method="ListNodes", seconds=0.01)
    assert await asyncio.to_thread(nodes, client) == []


def compute(cloud: Any, client: Any) -> Any:
    return cloud.keep(client(**cloud.options()))


async def test_slow_compute_operation(cloud: Any) -> None:
    fault = await add(cloud, "slow", method="Networks/Insert", seconds=3600)
    client = networks(cloud)
    wanted = compute_v1.Network(name="n", auto_create_subnetworks=True)

    def insert() -> Any:
        return client.insert_unary(project=PROJECT, network_resource=wanted, timeout=60)

    operation = await asyncio.to_thread(insert)
    assert operation.status is compute_v1.Operation.Status.RUNNING
    assert await used(cloud, fault) == 1


@pytest.mark.parametrize("kind", ["drop-response", "drop-request"])
async def test_lost_compute_response(cloud: Any, kind: str) -> None:
    fault = await add(cloud, kind, method="google.cloud.compute.v1.Networks/Insert")
    client = networks(cloud)
    wanted = compute_v1.Network(name="n", auto_create_subnetworks=True)

    def insert() -> Any:
        return client.insert_unary(project=PROJECT, network_resource=wanted, timeout=60)

    def fault_ids() -> list[str]:
        return [network.name for network in client.list(project=PROJECT, timeout=60)]

    with pytest.raises(requests.ConnectionError):
        await asyncio.to_thread(insert)
    assert ("n" in await asyncio.to_thread(fault_ids)) == (kind == "drop-response")
    assert await used(cloud, fault) == 1


async def test_compute_operation_fails_with_compute_code(cloud: Any) -> None:
    fields = {
        "method": "Networks/Insert",
        "google_error": "compute-stockout",
        "fail_operation": True,
    }
    fault = await add(cloud, "error", **fields)
    client, operations = networks(cloud), compute(cloud, compute_v1.GlobalOperationsClient)
    wanted = compute_v1.Network(name="n", auto_create_subnetworks=True)

    def insert() -> Any:
        begun = client.insert_unary(project=PROJECT, network_resource=wanted, timeout=60)
        return operations.wait(project=PROJECT, operation=begun.name, timeout=60)

    ended = await asyncio.to_thread(insert)
    assert ended.status is compute_v1.Operation.Status.DONE
    assert [error.code for error in ended.error.errors] == ["ZONE_RESOURCE_POOL_EXHAUSTED"]
    assert await used(cloud, fault) == 1
