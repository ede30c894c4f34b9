"""Cloud TPU v2 as its official client sees it, over gRPC and over REST."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2
from google.protobuf import field_mask_pb2

from tests.support.places import PARENT, PROJECT, ZONE

RUNTIME = "tpu-ubuntu2204-base"
State = tpu_v2.Node.State

both = pytest.mark.parametrize("transport", ["grpc", "rest"])


def node(**fields: Any) -> tpu_v2.Node:
    return tpu_v2.Node(**{"accelerator_type": "v3-8", "runtime_version": RUNTIME, **fields})


def create(
    client: Any, node_id: str, wanted: tpu_v2.Node | None = None, parent: str = PARENT
) -> Any:
    operation = client.create_node(
        parent=parent, node_id=node_id, node=wanted or node(), timeout=10
    )
    return operation.result(timeout=20)


@both
async def test_a_nodes_life(make_cloud: Any, transport: str) -> None:
    cloud = await make_cloud()
    cloud.enable("tpu", "compute")
    cloud.host.gate.clear()
    client = cloud.tpu(transport)

    def begin() -> Any:
        return client.create_node(
            parent=PARENT,
            node_id="one",
            node=node(labels={"tpuctl-stack": "s"}, metadata={"ssh-keys": "u:k"}, tags=["t"]),
            timeout=10,
        )

    operation = await asyncio.to_thread(begin)
    assert operation.operation.name.startswith(f"{PARENT}/operations/")
    assert (
        operation.operation.metadata.type_url
        == "type.googleapis.com/google.cloud.common.OperationMetadata"
    )
    name = f"{PARENT}/nodes/one"
    found = await asyncio.to_thread(client.get_node, name=name, timeout=10)
    assert found.state is State.CREATING
    assert not operation.operation.done
    cloud.host.gate.set()
    made = await asyncio.to_thread(operation.result, timeout=20)
    found = await asyncio.to_thread(client.get_node, name=name, timeout=10)
    assert made == found
    assert found.state is State.READY
    assert found.health is tpu_v2.Node.Health.HEALTHY
    assert found.name == name
    assert found.id > 0
    assert found.api_version is tpu_v2.Node.ApiVersion.V2
    assert dict(found.labels) == {"tpuctl-stack": "s"}
    assert list(found.tags) == ["t"]
    assert re.fullmatch(
        r"\d{12}-compute@developer\.gserviceaccount\.com", found.service_account.email
    )
    assert [endpoint.port for endpoint in found.network_endpoints] == [8470]
    assert cloud.host.count_running() == 1
    cloud.host.gate.clear()
    operation = await asyncio.to_thread(client.delete_node, name=name, timeout=10)
    deleting = await asyncio.to_thread(client.get_node, name=name, timeout=10)
    assert deleting.state is State.DELETING
    cloud.host.gate.set()
    await asyncio.to_thread(operation.result, timeout=20)
    with pytest.raises(exceptions.NotFound):
        await asyncio.to_thread(client.get_node, name=name, timeout=10)
    assert cloud.host.discarded == [f"{name}/workers/0"]


async def test_both_transports_answer_the_same(cloud: Any) -> None:
    def compare() -> None:
        grpc, rest = cloud.tpu("grpc"), cloud.tpu("rest")
        create(grpc, "made-over-grpc", node(network_config={"enable_external_ips": True}))
        create(rest, "made-over-rest")
        assert list(grpc.list_nodes(parent=PARENT, timeout=10)) == list(
            rest.list_nodes(parent=PARENT, timeout=10)
        )
        for name in ("made-over-grpc", "made-over-rest"):
            full = f"{PARENT}/nodes/{name}"
            assert grpc.get_node(name=full, timeout=10) == rest.get_node(name=full, timeout=10)
        request = {"name": PARENT}
        theirs = grpc.list_operations(request=request, timeout=10)
        assert len(theirs.operations) == 2
        assert theirs == rest.list_operations(request=request, timeout=10)
        errors = []
        for client in (grpc, rest):
            with pytest.raises(exceptions.NotFound) as caught:
                client.get_node(name=f"{PARENT}/nodes/nobody", timeout=10)
            errors.append(caught.value.message)
        assert errors[0] in errors[1]

    await asyncio.to_thread(compare)


@both
@pytest.mark.parametrize(
    ("zone", "wanted", "told"),
    [
        ("mars-north1-a", node(), 'The requested zone "mars-north1-a" is not supported.'),
        (
            ZONE,
            node(accelerator_type="v4-8"),
            'The requested accelerator configuration for accelerator type, "v4-8", could not be '
            'found in the zonal accelerator configurations for "europe-west4-a".; the accelerator '
            "v4-8 was not found in zone europe-west4-a",
        ),
        (ZONE, node(accelerator_type="v99-8"), 'accelerator type, "v99-8", could not be found'),
        (ZONE, node(runtime_version="tpu-vm-tf-9.9.9"), '"tpu-vm-tf-9.9.9" was not found'),
        (ZONE, node(runtime_version=""), "runtime_version"),
        (ZONE, node(runtime_version="v2-alpha-tpuv6e"), "does not support"),
    ],
)
async def test_what_is_not_offered_is_refused(
    cloud: Any, transport: str, zone: str, wanted: tpu_v2.Node, told: str
) -> None:
    client = cloud.tpu(transport)
    parent = f"projects/{PROJECT}/locations/{zone}"
    with pytest.raises(exceptions.BadRequest) as caught:
        await asyncio.to_thread(create, client, "n", wanted, parent)
    assert told in caught.value.message
    assert "[EID: 0x" in caught.value.message
    assert not list(await asyncio.to_thread(client.list_nodes, parent=parent, timeout=10))


@pytest.mark.parametrize("node_id", ["", "Big", "1st", "a-", "x" * 64, "a.b"])
async def test_a_bad_node_id_is_refused(cloud: Any, node_id: str) -> None:
    with pytest.raises(exceptions.BadRequest):
        await asyncio.to_thread(create, cloud.tpu(), node_id)


@both
async def test_a_second_node_of_a_name_is_refused(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    await asyncio.to_thread(create, client, "twin")
    kind = exceptions.Conflict
    with pytest.raises(kind) as caught:
        await asyncio.to_thread(create, client, "twin")
    assert f"Resource '{PARENT}/nodes/twin' already exists" in caught.value.message
    (detail,) = caught.value.details
    name = detail["resourceName"] if isinstance(detail, dict) else detail.resource_name
    assert name == f"{PARENT}/nodes/twin"


@both
async def test_a_disabled_api_says_how_to_enable_it(make_cloud: Any, transport: str) -> None:
    cloud = await make_cloud()
    client = cloud.tpu(transport)
    with pytest.raises(exceptions.Forbidden) as caught:
        await asyncio.to_thread(create, client, "n")
    error = caught.value
    assert "Cloud TPU API has not been used in project" in error.message
    assert error.reason == "SERVICE_DISABLED"
    assert error.domain == "googleapis.com"
    assert error.metadata["service"] == "tpu.googleapis.com"


async def test_an_unknown_project_is_denied(cloud: Any) -> None:
    with pytest.raises(exceptions.PermissionDenied) as caught:
        await asyncio.to_thread(
            create, cloud.tpu(), "n", None, f"projects/nobodys/locations/{ZONE}"
        )
    assert caught.value.reason == "CONSUMER_INVALID"


async def test_a_missing_network_is_refused(cloud: Any) -> None:
    wanted = node(network_config={"network": "nowhere"})
    with pytest.raises(exceptions.NotFound) as caught:
        await asyncio.to_thread(create, cloud.tpu(), "n", wanted)
    assert f"'projects/{PROJECT}/global/networks/nowhere' was not found" in caught.value.message


async def test_a_slice_has_a_machine_for_each_worker(cloud: Any) -> None:
    wanted = node(accelerator_type="v3-32", network_config={"enable_external_ips": True})
    made = await asyncio.to_thread(create, cloud.tpu(), "slice", wanted)
    addresses = [endpoint.ip_address for endpoint in made.network_endpoints]
    assert len(set(addresses)) == 4
    assert [e.access_config.external_ip for e in made.network_endpoints] == addresses
    specs = [cloud.host.specs[f"{made.name}/workers/{index}"] for index in range(4)]
    assert [spec.worker for spec in specs] == [0, 1, 2, 3]
    assert [endpoint.address for endpoint in specs[2].endpoints] == addresses
    assert specs[0].service_account == made.service_account.email
    assert cloud.server.world.access.identify(specs[0].access_token) == specs[0].service_account


async def test_without_external_addresses_there_are_none(cloud: Any) -> None:
    made = await asyncio.to_thread(create, cloud.tpu(), "inside")
    assert not made.network_endpoints[0].access_config.external_ip
    assert made.network_endpoints[0].ip_address


async def test_an_ssh_port_that_is_not_22_is_told(cloud: Any) -> None:
    cloud.host.ssh_port = 2201
    client = cloud.tpu()
    made = await asyncio.to_thread(create, client, "high", node(metadata={"a": "b"}))
    assert dict(made.metadata) == {"a": "b", "tpuctl-ssh-port": "2201"}
    changed = await asyncio.to_thread(update, client, made.name, metadata={"c": "d"})
    assert dict(changed.metadata) == {"c": "d", "tpuctl-ssh-port": "2201"}
    moved = await asyncio.to_thread(
        update, client, made.name, metadata={"tpuctl-ssh-port": "2202"}
    )  # whoever serves it elsewhere says so
    assert dict(moved.metadata) == {"tpuctl-ssh-port": "2202"}


def update(client: Any, name: str, **fields: Any) -> Any:
    operation = client.update_node(
        node=tpu_v2.Node(name=name, **fields),
        update_mask=field_mask_pb2.FieldMask(paths=list(fields)),
        timeout=10,
    )
    return operation.result(timeout=20)


@both
async def test_updates_touch_what_the_mask_names(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    made = await asyncio.to_thread(
        create, client, "n", node(labels={"keep": "me"}, description="old")
    )
    changed = await asyncio.to_thread(
        update, client, made.name, description="new", metadata={"ssh-keys": "u:k2"}, tags=["x"]
    )
    assert changed.description == "new"
    assert dict(changed.labels) == {"keep": "me"}
    assert list(changed.tags) == ["x"]
    found = await asyncio.to_thread(client.get_node, name=made.name, timeout=10)
    assert found == changed
    spec = cloud.host.specs[f"{made.name}/workers/0"]
    assert spec.metadata["ssh-keys"] == "u:k2"
    with pytest.raises(exceptions.BadRequest):
        await asyncio.to_thread(update, client, made.name, runtime_version="other")


@both
async def test_workers_can_be_given_external_addresses_and_lose_them(
    cloud: Any, transport: str
) -> None:
    client = cloud.tpu(transport)
    made = await asyncio.to_thread(create, client, "n")
    for has_external in (True, False):
        operation = await asyncio.to_thread(
            client.update_node,
            node=tpu_v2.Node(name=made.name, network_config={"enable_external_ips": has_external}),
            update_mask=field_mask_pb2.FieldMask(paths=["network_config.enable_external_ips"]),
        )
        changed = await asyncio.to_thread(operation.result, timeout=20)
        assert changed.network_config.enable_external_ips is has_external
        assert changed.network_config.network == made.network_config.network
        assert bool(changed.network_endpoints[0].access_config.external_ip) is has_external


async def test_data_disks_that_are_attached_later_must_be_there(cloud: Any) -> None:
    client = cloud.tpu()
    made = await asyncio.to_thread(create, client, "n")
    disk = {"source_disk": f"projects/{PROJECT}/zones/{ZONE}/disks/absent"}
    with pytest.raises(exceptions.NotFound, match="disks/absent"):
        await asyncio.to_thread(update, client, made.name, data_disks=[disk])


async def test_machines_know_the_keys_of_the_project_and_no_more_of_it(cloud: Any) -> None:
    made = await asyncio.to_thread(create, cloud.tpu(), "n")
    items = [{"key": "ssh-keys", "value": "u:k"}, {"key": "startup-script", "value": "true"}]
    path = f"/compute/v1/projects/{PROJECT}/setCommonInstanceMetadata"
    answer = await asyncio.to_thread(cloud.request, "POST", path, json={"items": items})
    assert answer.ok, answer.text
    later = await asyncio.to_thread(create, cloud.tpu(), "later")
    for each in (made, later):
        spec = cloud.host.specs[f"{each.name}/workers/0"]
        assert spec.project_metadata == {"ssh-keys": "u:k"}


@both
async def test_stop_and_start(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    made = await asyncio.to_thread(create, client, "n")

    def run(verb: str) -> Any:
        method = getattr(client, f"{verb}_node")
        return method(request={"name": made.name}, timeout=10).result(timeout=20)

    assert (await asyncio.to_thread(run, "stop")).state is State.STOPPED
    assert cloud.host.count_running() == 0
    with pytest.raises(exceptions.BadRequest) as caught:
        await asyncio.to_thread(run, "stop")
    assert "stop is not supported while in state STOPPED" in caught.value.message
    assert (await asyncio.to_thread(run, "start")).state is State.READY
    assert cloud.host.count_running() == 1


async def test_a_machine_that_cannot_start_fails_the_creation(cloud: Any) -> None:
    cloud.host.broken = "no image for this runtime"
    client = cloud.tpu()
    with pytest.raises(exceptions.GoogleAPICallError) as caught:
        await asyncio.to_thread(create, client, "n")
    assert "no image for this runtime" in caught.value.message
    assert not list(await asyncio.to_thread(client.list_nodes, parent=PARENT, timeout=10))
    cloud.host.broken = ""
    made = await asyncio.to_thread(create, client, "n")
    assert made.state is State.READY


async def test_lists_come_in_pages_and_over_all_zones(cloud: Any) -> None:
    def run() -> None:
        client = cloud.tpu("rest")
        for index in range(5):
            create(client, f"n{index}")
        create(
            client,
            "far",
            node(accelerator_type="v5litepod-4", runtime_version=RUNTIME_V5E),
            f"projects/{PROJECT}/locations/us-west4-a",
        )
        pager = client.list_nodes(request={"parent": PARENT, "page_size": 2}, timeout=10)
        pages = [[item.name.rpartition("/")[2] for item in page.nodes] for page in pager.pages]
        assert pages == [["n0", "n1"], ["n2", "n3"], ["n4"]]
        everywhere = client.list_nodes(parent=f"projects/{PROJECT}/locations/-", timeout=10)
        assert {item.name.split("/")[3] for item in everywhere} == {ZONE, "us-west4-a"}

    await asyncio.to_thread(run)


RUNTIME_V5E = "v2-alpha-tpuv5-lite"


@both
async def test_guest_attributes_have_the_host_keys(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    made = await asyncio.to_thread(create, client, "n", node(accelerator_type="v3-32"))

    def ask(workers: list[str]) -> list[str]:
        answer = client.get_guest_attributes(
            request={"name": made.name, "worker_ids": workers, "query_path": "hostkeys/"},
            timeout=10,
        )
        return [entry.query_value.items[0].value for entry in answer.guest_attributes]

    assert await asyncio.to_thread(ask, [""]) == [f"KEY-OF-{index}" for index in range(4)]
    assert await asyncio.to_thread(ask, ["2"]) == ["KEY-OF-2"]
    with pytest.raises(exceptions.BadRequest):
        await asyncio.to_thread(ask, ["4"])


@both
async def test_types_runtimes_and_zones(cloud: Any, transport: str) -> None:
    def run() -> None:
        client = cloud.tpu(transport)
        types = {t.type_: t for t in client.list_accelerator_types(parent=PARENT, timeout=10)}
        assert "v3-8" in types
        assert "v4-8" not in types
        assert types["v3-8"].accelerator_configs[0].topology == "2x2"
        name = f"{PARENT}/acceleratorTypes/v3-8"
        assert client.get_accelerator_type(name=name, timeout=10) == types["v3-8"]
        versions = [v.version for v in client.list_runtime_versions(parent=PARENT, timeout=10)]
        assert RUNTIME in versions
        found = client.get_runtime_version(name=f"{PARENT}/runtimeVersions/{RUNTIME}", timeout=10)
        assert found.version == RUNTIME
        request = {"name": f"projects/{PROJECT}"}
        locations = client.list_locations(request=request, timeout=10).locations
        assert ZONE in {location.location_id for location in locations}
        identity = client.generate_service_identity(request={"parent": PARENT}, timeout=10).identity
        assert re.fullmatch(r"service-\d+@gcp-sa-tpu\.iam\.gserviceaccount\.com", identity.email)

    await asyncio.to_thread(run)


@both
async def test_an_ended_operation_can_be_deleted(cloud: Any, transport: str) -> None:
    def run() -> None:
        client = cloud.tpu(transport)
        operation = client.create_node(parent=PARENT, node_id="n", node=node(), timeout=10)
        operation.result(timeout=20)
        request = {"name": operation.operation.name}
        assert client.get_operation(request=request, timeout=10).done
        client.delete_operation(request=request, timeout=10)
        with pytest.raises(exceptions.NotFound):
            client.get_operation(request=request, timeout=10)

    await asyncio.to_thread(run)
