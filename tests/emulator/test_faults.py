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


def create(client: Any, node_id: str = "one") -> Any:
    return client.create_node(parent=PARENT, node_id=node_id, node=NODE, timeout=60)


def nodes(client: Any) -> list[str]:
    return [node.name.rpartition("/")[2] for node in client.list_nodes(parent=PARENT, timeout=60)]


def networks(cloud: Any) -> Any:
    return cloud.client(compute_v1.NetworksClient)


@both
def test_unavailable_applies_before_the_action(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    fault = cloud.add_fault("unavailable", method="CreateNode", times=2)
    for count in (1, 2):
        with pytest.raises(exceptions.ServiceUnavailable):
            create(client)
        assert cloud.used(fault) == count
    assert nodes(client) == []
    create(client)
    assert nodes(client) == ["one"]
    assert cloud.used(fault) == 2


@both
def test_lost_response_keeps_the_action(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    fault = cloud.add_fault("drop-response", method="google.cloud.tpu.v2.Tpu/CreateNode")
    with pytest.raises((exceptions.ServiceUnavailable, requests.ConnectionError)) as caught:
        create(client)
    if transport == "grpc":
        assert "Socket closed" in str(caught.value)
    assert nodes(client) == ["one"]
    with pytest.raises((exceptions.AlreadyExists, exceptions.Conflict)):
        create(client)
    assert cloud.used(fault) == 1


@both
def test_dropped_request_has_no_effect(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    fault = cloud.add_fault("drop-request", method="CreateNode")
    with pytest.raises((exceptions.ServiceUnavailable, requests.ConnectionError)):
        create(client)
    assert nodes(client) == []
    assert cloud.used(fault) == 1


async def test_lost_response_sends_no_bytes(cloud: Any) -> None:
    await asyncio.to_thread(cloud.add_fault, "drop-response", method="buckets.insert")
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
def test_at_applies_to_the_nth_request(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    fault = cloud.add_fault("unavailable", method="ListNodes", at=3)
    assert nodes(client) == []
    assert nodes(client) == []
    with pytest.raises(exceptions.ServiceUnavailable):
        nodes(client)
    assert nodes(client) == []
    fault_state = remote_control.fault(cloud.local_cloud, fault)
    assert (fault_state["matched"], fault_state["applied"], fault_state["exhausted"]) == (
        3,
        1,
        True,
    )


def test_unlimited_applies_until_removed(cloud: Any) -> None:
    client = cloud.tpu()
    fault = cloud.add_fault("unavailable", times="unlimited")
    for _ in range(5):
        with pytest.raises(exceptions.ServiceUnavailable):
            nodes(client)
    removed = remote_control.remove_fault(cloud.local_cloud, fault)
    assert (removed["applied"], removed["exhausted"]) == (5, False)
    assert nodes(client) == []
    assert remote_control.faults(cloud.local_cloud) == []


@both
def test_an_error_of_any_code_and_text(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    cloud.add_fault("error", method="GetNode", code="ABORTED", text="try it again")
    with pytest.raises((exceptions.Aborted, exceptions.Conflict)) as caught:
        client.get_node(name=f"{PARENT}/nodes/x", timeout=60)
    assert "try it again" in str(caught.value)
    cloud.add_fault("error", method="CreateNode", google_error="location-policy")
    with pytest.raises((exceptions.PermissionDenied, exceptions.Forbidden)) as denied:
        create(client)
    assert f"Permission denied on 'locations/{ZONE}' (or it may not exist)." in str(denied.value)
    assert denied.value.reason == "LOCATION_POLICY_VIOLATED"
    assert denied.value.metadata["location"] == ZONE


@both
async def test_zone_quota_error_matches_google(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    fault = await asyncio.to_thread(cloud.add_fault, "quota", zone=ZONE, limit="TPUV3", number=4)
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
    assert await asyncio.to_thread(cloud.used, fault) == 1


def test_fault_applies_only_to_its_zone(cloud: Any) -> None:
    client = cloud.tpu()
    other_requests = [
        cloud.add_fault("quota", zone="us-central1-b"),
        cloud.add_fault("unavailable", project="another-project"),
        cloud.add_fault("unavailable", method="CreateNode", name="two"),
        cloud.add_fault("quota", type="v2-8"),
        cloud.add_fault("unavailable", method="storage.*"),
    ]
    create(client)
    assert [cloud.used(fault) for fault in other_requests] == [0] * 5
    remote_control.remove_all_faults(cloud.local_cloud)
    for match in ({"name": "two"}, {"type": "v3-8"}, {"zone": "europe-*"}, {"project": PROJECT}):
        fault = cloud.add_fault("deny", method="CreateNode", **match)
        with pytest.raises(exceptions.PermissionDenied):
            create(client, "two")
        assert cloud.used(fault) == 1, match
        remote_control.remove_all_faults(cloud.local_cloud)


def test_mutating_matches_all_mutations(cloud: Any) -> None:
    client, storage = cloud.tpu(), cloud.storage()
    cloud.add_fault("deny", method="mutating", times="unlimited")
    assert nodes(client) == []
    assert list(storage.list_buckets(timeout=60)) == []
    with pytest.raises(exceptions.PermissionDenied):
        create(client)
    with pytest.raises(exceptions.Forbidden):
        storage.create_bucket("a-bucket", timeout=60)
    with pytest.raises(exceptions.Forbidden):
        networks(cloud).delete_unary(project=PROJECT, network="default")


def test_storage_methods_have_json_api_names(cloud: Any) -> None:
    bucket = cloud.storage().bucket("a-bucket")
    bucket.create(timeout=60)
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
        fault = cloud.add_fault("unavailable", method=method, text="struck")
        with pytest.raises(exceptions.ServiceUnavailable) as caught:
            step()
        assert "struck" in str(caught.value)
        assert cloud.used(fault) == 1
        step()
    fault = cloud.add_fault("unavailable", name="a-bucket")
    with pytest.raises(exceptions.ServiceUnavailable):
        upload()
    assert cloud.used(fault) == 1


def test_lost_upload_response_keeps_object(cloud: Any) -> None:
    bucket = cloud.storage().bucket("a-bucket")
    bucket.create(timeout=60)
    fault = cloud.add_fault("drop-response", method="storage.objects.insert")
    blob = bucket.blob("lock")

    def take() -> None:
        blob.upload_from_string("mine", if_generation_match=0, timeout=60)

    with pytest.raises(exceptions.PreconditionFailed):  # the client retries automatically
        take()
    assert cloud.used(fault) == 1
    assert blob.download_as_bytes(timeout=60) == b"mine"


def test_large_upload_receives_error(cloud: Any) -> None:
    cloud.storage().create_bucket("a-bucket", timeout=60)
    cloud.add_fault("deny", method="storage.objects.insert")
    path = "/upload/storage/v1/b/a-bucket/o?uploadType=media&name=large"
    answer = cloud.request("POST", path, data=b"x" * (8 << 20))
    assert answer.status_code == 403
    assert answer.json()["error"]["errors"][0]["reason"] == "forbidden"


def test_compute_errors_have_legacy_format(cloud: Any) -> None:
    client = networks(cloud)
    fault = cloud.add_fault("error", method="google.cloud.compute.v1.Networks/*", http=418)
    answer = cloud.request("GET", f"/compute/v1/projects/{PROJECT}/global/networks")
    assert answer.status_code == 418
    assert answer.json()["error"]["errors"][0]["domain"] == "global"
    assert cloud.used(fault) == 1
    cloud.add_fault("error", google_error="compute-quota", method="Networks/Insert", number=5)
    wanted = compute_v1.Network(name="n", auto_create_subnetworks=True)
    with pytest.raises(exceptions.Forbidden) as caught:
        client.insert_unary(project=PROJECT, network_resource=wanted, timeout=60)
    assert "Quota 'CPUS' exceeded." in str(caught.value)


def test_operation_fails(cloud: Any) -> None:
    client = cloud.tpu()
    fault = cloud.add_fault(
        "error", method="CreateNode", google_error="reservation", fail_operation=True
    )
    operation = create(client)
    with pytest.raises(exceptions.NotFound, match="Reservation not found"):
        operation.result(timeout=60)
    assert cloud.used(fault) == 1
    assert nodes(client) == []
    assert "boot" not in cloud.host.called


async def test_slow_operation_takes_longer(make_cloud: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("tpu", "compute")
    fault = await asyncio.to_thread(cloud.add_fault, "slow", method="CreateNode", seconds=3600)
    client = cloud.tpu()
    operation = await asyncio.to_thread(create, client)
    assert await asyncio.to_thread(cloud.used, fault) == 1
    record = cloud.server.registry.operations.get(operation.operation.name)
    assert record.due - record.started == pytest.approx(3600)
    assert not record.is_done


@both
def test_slow_call_is_delayed(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    fault = cloud.add_fault("slow", method="ListNodes", seconds=3600)

    def create() -> None:
        client.list_nodes(parent=PARENT, timeout=0.5)

    with pytest.raises((exceptions.DeadlineExceeded, requests.ReadTimeout)):
        create()
    assert cloud.used(fault) == 1
    assert nodes(client) == []
    cloud.add_fault("slow", method="ListNodes", seconds=0.01)
    assert nodes(client) == []


def test_slow_compute_operation(cloud: Any) -> None:
    fault = cloud.add_fault("slow", method="Networks/Insert", seconds=3600)
    client = networks(cloud)
    wanted = compute_v1.Network(name="n", auto_create_subnetworks=True)
    operation = client.insert_unary(project=PROJECT, network_resource=wanted, timeout=60)
    assert operation.status is compute_v1.Operation.Status.RUNNING
    assert cloud.used(fault) == 1


@pytest.mark.parametrize("kind", ["drop-response", "drop-request"])
def test_lost_compute_response(cloud: Any, kind: str) -> None:
    fault = cloud.add_fault(kind, method="google.cloud.compute.v1.Networks/Insert")
    client = networks(cloud)
    wanted = compute_v1.Network(name="n", auto_create_subnetworks=True)

    def insert() -> Any:
        return client.insert_unary(project=PROJECT, network_resource=wanted, timeout=60)

    with pytest.raises(requests.ConnectionError):
        insert()
    names = [network.name for network in client.list(project=PROJECT, timeout=60)]
    assert ("n" in names) == (kind == "drop-response")
    assert cloud.used(fault) == 1


def test_compute_operation_fails_with_compute_code(cloud: Any) -> None:
    fields = {
        "method": "Networks/Insert",
        "google_error": "compute-stockout",
        "fail_operation": True,
    }
    fault = cloud.add_fault("error", **fields)
    client, operations = networks(cloud), cloud.client(compute_v1.GlobalOperationsClient)
    wanted = compute_v1.Network(name="n", auto_create_subnetworks=True)
    begun = client.insert_unary(project=PROJECT, network_resource=wanted, timeout=60)
    ended = operations.wait(project=PROJECT, operation=begun.name, timeout=60)
    assert ended.status is compute_v1.Operation.Status.DONE
    assert [error.code for error in ended.error.errors] == ["ZONE_RESOURCE_POOL_EXHAUSTED"]
    assert cloud.used(fault) == 1
