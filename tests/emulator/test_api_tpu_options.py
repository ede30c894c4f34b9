"""Options of TPU VMs and their validation, with the official client of v2."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2
from google.rpc import error_details_pb2

from tests.support.locations import PARENT, PROJECT, ZONE

NAME = f"{PARENT}/nodes/n"
RUNTIME = "tpu-ubuntu2204-base"
Config = tpu_v2.AcceleratorConfig
Disk = tpu_v2.AttachedDisk

both = pytest.mark.parametrize("transport", ["grpc", "rest"])


def node(**fields: Any) -> tpu_v2.Node:
    if "accelerator_config" not in fields:
        fields = {"accelerator_type": "v3-8", **fields}
    return tpu_v2.Node(**{"runtime_version": RUNTIME, **fields})


def create(client: Any, requested: tpu_v2.Node, node_id: str = "n", parent: str = PARENT) -> Any:
    operation = client.create_node(parent=parent, node_id=node_id, node=requested, timeout=60)
    return operation.result(timeout=60)


def delete(client: Any, name: str = NAME) -> Any:
    return client.delete_node(name=name, timeout=60).result(timeout=60)


def refused(cloud: Any, kind: type[Exception], requested: tpu_v2.Node, expected: str) -> Any:
    """The error, after which no node exists."""
    client = cloud.tpu()
    with pytest.raises(kind) as caught:
        create(client, requested)
    assert expected in str(caught.value)
    assert not list(client.list_nodes(parent=PARENT, timeout=60))
    assert cloud.host.count_running() == 0
    return caught.value


def limit(cloud: Any, quota: dict[str, dict[str, int]]) -> None:
    cloud.put_setting("quota", quota)


@both
def test_node_by_topology(cloud: Any, transport: str) -> None:
    requested = node(accelerator_config=Config(type_=Config.Type.V3, topology="4x4"))
    created = create(cloud.tpu(transport), requested)
    assert created.accelerator_type == "v3-32"
    assert created.accelerator_config.topology == "4x4"
    assert len(created.network_endpoints) == 4
    assert cloud.host.count_running() == 4


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {
                "accelerator_type": "v3-8",
                "accelerator_config": Config(type_=Config.Type.V3, topology="2x2"),
            },
            "mutually exclusive",
        ),
        ({"accelerator_config": Config(type_=Config.Type.V3, topology="3x3")}, '"3x3"'),
        ({"accelerator_config": Config(type_=Config.Type.V3, topology="2x2x1")}, '"2x2x1"'),
        ({"labels": {"Team": "a"}}, '"Team"'),
        ({"labels": {"1st": "a"}}, '"1st"'),
        ({"labels": {"": "a"}}, '""'),
        ({"labels": {"k" * 64: "a"}}, "label key"),
        ({"labels": {"team": "A"}}, '"A"'),
        ({"labels": {"team": "a.b"}}, '"a.b"'),
        ({"labels": {"team": "v" * 64}}, "label"),
        ({"labels": {f"k{index}": "" for index in range(65)}}, "64 labels"),
        ({"tags": ["Bad"]}, '"Bad"'),
        ({"description": "d" * 513}, "512"),
        ({"data_disks": [Disk(source_disk="my-disk")]}, "my-disk"),
    ],
)
def test_invalid_fields_are_rejected(cloud: Any, fields: dict[str, Any], expected: str) -> None:
    refused(cloud, exceptions.BadRequest, node(**fields), expected)


def test_international_labels_are_accepted(cloud: Any) -> None:
    labels = {"équipe": "données-1", "a_b-c": ""}
    created = create(cloud.tpu(), node(labels=labels))
    assert dict(created.labels) == labels


@both
def test_reserved_node_requires_reservation(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    requested = node(scheduling_config={"reserved": True})
    operation = client.create_node(parent=PARENT, node_id="n", node=requested, timeout=60)
    with pytest.raises(exceptions.GoogleAPICallError) as caught:
        operation.result(timeout=60)
    assert "Reservation not found" in caught.value.message
    assert operation.operation.error.code == 5
    assert not list(client.list_nodes(parent=PARENT, timeout=60))
    assert "boot" not in cloud.host.called
    cloud.put_setting("reservations", [f"{PARENT}/reservations/r"])
    assert create(client, requested).scheduling_config.reserved


@both
def test_stockout_fails_creation(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    cloud.in_loop(cloud.server.registry.faults.add, {"kind": "stockout", "zone": ZONE, "times": 1})
    operation = client.create_node(parent=PARENT, node_id="n", node=node(), timeout=60)
    with pytest.raises(exceptions.GoogleAPICallError) as caught:
        operation.result(timeout=60)
    assert f'There is no more capacity in the zone "{ZONE}"' in caught.value.message
    assert operation.operation.error.code == 8
    assert not list(client.list_nodes(parent=PARENT, timeout=60))
    assert "boot" not in cloud.host.called
    assert cloud.host.reserved == {}
    create(client, node())


# Disks.


def make_disk(cloud: Any, zone: str = ZONE) -> str:
    name = f"projects/{PROJECT}/zones/{zone}/disks/d"
    cloud.in_loop(cloud.server.store.put_json, "compute.disks", name, {"name": "d"})
    return name


def test_data_disk_must_exist(cloud: Any) -> None:
    disk = f"projects/{PROJECT}/zones/{ZONE}/disks/d"
    requested = node(data_disks=[Disk(source_disk=disk)])
    refused(cloud, exceptions.NotFound, requested, f"'{disk}' was not found")
    make_disk(cloud)
    created = create(cloud.tpu(), requested)
    assert [attached.source_disk for attached in created.data_disks] == [disk]
    partial = node(data_disks=[Disk(source_disk=disk.partition("local-project/")[2])])
    created = create(cloud.tpu(), partial, "partial")
    assert [attached.source_disk for attached in created.data_disks] == [disk]


def test_disk_of_other_zone_is_rejected(cloud: Any) -> None:
    disk = make_disk(cloud, "europe-west4-b")
    requested = node(data_disks=[Disk(source_disk=disk)])
    refused(cloud, exceptions.BadRequest, requested, "is not in zone")


def test_multi_host_slices_attach_disks_read_only(cloud: Any) -> None:
    disk = make_disk(cloud)
    fields: dict[str, Any] = {"accelerator_type": "v3-32"}
    for mode in (Disk.DiskMode.READ_WRITE, Disk.DiskMode.DISK_MODE_UNSPECIFIED):
        requested = node(**fields, data_disks=[Disk(source_disk=disk, mode=mode)])
        refused(cloud, exceptions.BadRequest, requested, "read-only")
    reading = Disk(source_disk=disk, mode=Disk.DiskMode.READ_ONLY)
    create(cloud.tpu(), node(**fields, data_disks=[reading]))


# Addresses and accounts.


@pytest.mark.parametrize("policy", ["compute.vmExternalIpAccess"])
def test_org_policy_denies_external_addresses(cloud: Any, policy: str) -> None:
    cloud.put_setting("policies", [policy])
    outside = node(network_config={"enable_external_ips": True})
    error = refused(
        cloud, exceptions.BadRequest, outside, "Constraint constraints/compute.vmExternalIpAccess"
    )
    assert error.grpc_status_code.name == "FAILED_PRECONDITION"
    created = create(cloud.tpu(), node())
    assert not created.network_endpoints[0].access_config.external_ip


def test_service_account_must_exist(cloud: Any) -> None:
    from google.cloud import iam_admin_v1

    email = f"trainer@{PROJECT}.iam.gserviceaccount.com"
    requested = node(service_account={"email": email})
    refused(cloud, exceptions.BadRequest, requested, f"{email} does not exist")

    iam = cloud.client(iam_admin_v1.IAMClient, "grpc")
    request = {"name": f"projects/{PROJECT}", "account_id": "trainer"}
    iam.create_service_account(request=request, timeout=60)
    created = create(cloud.tpu(), requested)
    assert created.service_account.email == email


def test_disabled_api_rejects_lists(new_cloud: Any) -> None:
    client = new_cloud.tpu()
    parent = f"projects/{PROJECT}/locations/-"
    for method in (client.list_nodes, client.list_queued_resources):
        with pytest.raises(exceptions.PermissionDenied) as caught:
            method(parent=parent, timeout=60)
        assert caught.value.reason == "SERVICE_DISABLED"


# Quota.

V3 = "TPUV3sPerProjectPerZoneForTPUAPI"
V3_SPOT = "TPUV3sPreemptiblePerProjectPerZoneForTPUAPI"
V3_PODS = "TPUV3sPodPerProjectPerRegionForTPUAPI"
SERVING = "TPUV5sLitepodServingPerProjectPerZoneForTPUAPI"


@both
def test_zonal_quota_is_enforced(cloud: Any, transport: str) -> None:
    limit(cloud, {V3: {ZONE: 8}})
    client = cloud.tpu(transport)
    create(client, node())
    with pytest.raises(exceptions.GoogleAPICallError) as caught:
        create(client, node(), "m")
    error = caught.value
    assert error.code == 429
    text = f"Quota limit '{V3}' has been exceeded. Limit: 8 in zone {ZONE}."
    assert text in error.message
    failure = error.details[0]
    if transport == "rest":
        violation = failure["violations"][0]
        subject, described = violation["subject"], violation["description"]
    else:
        assert isinstance(failure, error_details_pb2.QuotaFailure)
        subject, described = failure.violations[0].subject, failure.violations[0].description
    assert subject.startswith("project:1")
    assert described == f"Quota '{V3}' exhausted. Limit 8 in zone {ZONE}"
    assert cloud.host.count_running() == 1
    delete(client)
    create(client, node(), "m")


def test_spot_nodes_use_preemptible_quota(cloud: Any) -> None:
    limit(cloud, {V3: {ZONE: 0}, V3_SPOT: {ZONE: 8}})
    client = cloud.tpu()
    create(client, node(scheduling_config={"spot": True}))
    with pytest.raises(exceptions.ResourceExhausted) as caught:
        create(client, node(scheduling_config={"preemptible": True}), "m")
    assert V3_SPOT in caught.value.message
    with pytest.raises(exceptions.ResourceExhausted) as caught:
        create(client, node(), "m")
    assert V3 in caught.value.message


def test_regional_quota_spans_zones(cloud: Any) -> None:
    limit(cloud, {V3_PODS: {"europe-west4": 40}})
    client = cloud.tpu()
    create(client, node(accelerator_type="v3-32"))
    create(client, node(), "small")  # v3-8 is no pod
    with pytest.raises(exceptions.ResourceExhausted) as caught:
        create(client, node(accelerator_type="v3-32"), "m")
    assert f"'{V3_PODS}' has been exceeded. Limit: 40 in region europe-west4." in (
        caught.value.message
    )


def test_v1_nodes_share_quota(cloud: Any) -> None:
    from google.cloud import tpu_v1

    limit(cloud, {V3: {ZONE: 8}})
    v1 = cloud.client(tpu_v1.TpuClient, "grpc")
    requested = tpu_v1.Node(accelerator_type="v3-8", tensorflow_version="2.12.0")

    def create_v1(node_id: str) -> Any:
        operation = v1.create_node(parent=PARENT, node_id=node_id, node=requested, timeout=60)
        return operation.result(timeout=60)

    create_v1("n")
    for attempt in (lambda: create_v1("m"), lambda: create(cloud.tpu(), node(), "m")):
        with pytest.raises(exceptions.ResourceExhausted) as caught:
            attempt()
        assert V3 in caught.value.message


def test_v5e_single_hosts_use_serving_quota(cloud: Any) -> None:
    zone = "us-west4-a"
    limit(cloud, {SERVING: {zone: 4}})
    client = cloud.tpu()
    parent = f"projects/{PROJECT}/locations/{zone}"
    fields = {"runtime_version": "v2-alpha-tpuv5-lite"}
    with pytest.raises(exceptions.ResourceExhausted) as caught:
        requested = node(accelerator_type="v5litepod-8", **fields)
        create(client, requested, "n", parent)
    assert SERVING in caught.value.message
    for kind in ("v5litepod-16", "v5litepod-4"):
        create(client, node(accelerator_type=kind, **fields), kind, parent)


async def test_queued_resources_use_quota_until_deleted(cloud: Any) -> None:
    limit(cloud, {V3: {ZONE: 8}})
    cloud.server.registry.faults.add({"kind": "queue-failure", "zone": ZONE})
    client = cloud.tpu()
    name = f"{PARENT}/queuedResources/q"

    def queue(queued_id: str) -> None:
        spec = {"parent": PARENT, "node_id": queued_id, "node": node()}
        resource = tpu_v2.QueuedResource(tpu={"node_spec": [spec]})
        request = {
            "parent": PARENT,
            "queued_resource_id": queued_id,
            "queued_resource": resource,
        }
        client.create_queued_resource(request=request, timeout=60).result(timeout=60)

    def state() -> Any:
        return client.get_queued_resource(name=name, timeout=60).state.state

    await asyncio.to_thread(queue, "q")
    async with asyncio.timeout(20):
        while (await asyncio.to_thread(state)) is not tpu_v2.QueuedResourceState.State.FAILED:
            await asyncio.sleep(0.02)
    for attempt in (lambda: queue("r"), lambda: create(client, node())):
        with pytest.raises(exceptions.ResourceExhausted):
            await asyncio.to_thread(attempt)
    request = {"name": name}
    operation = await asyncio.to_thread(client.delete_queued_resource, request=request, timeout=60)
    await asyncio.to_thread(operation.result, timeout=60)
    await asyncio.to_thread(queue, "r")
