"""Cloud TPU v1 with its official client (gRPC) and plain REST."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v1, tpu_v2

from tests.support.locations import PARENT, PROJECT, ZONE
from tests.support.polling import async_until

NAME = f"{PARENT}/nodes/n"
State = tpu_v1.Node.State
ApiVersion = tpu_v1.Node.ApiVersion


def client_of(cloud: Any) -> tpu_v1.TpuClient:
    return cloud.client(tpu_v1.TpuClient, "grpc")


def node(**fields: Any) -> tpu_v1.Node:
    return tpu_v1.Node(**{"accelerator_type": "v3-8", "tensorflow_version": "2.12.0", **fields})


def create(
    client: tpu_v1.TpuClient,
    node_id: str = "n",
    requested: tpu_v1.Node | None = None,
    parent: str = PARENT,
) -> tpu_v1.Node:
    operation = client.create_node(
        parent=parent, node_id=node_id, node=requested or node(), timeout=60
    )
    return operation.result(timeout=60)


def refusal(cloud: Any, kind: type[Exception], **more: Any) -> str:
    with pytest.raises(kind) as caught:
        create(client_of(cloud), **more)
    return str(caught.value.message)  # type: ignore[attr-defined]


def test_node_lifecycle(cloud: Any) -> None:
    cloud.host.gate.clear()
    client = client_of(cloud)
    requested = node(
        cidr_block="10.2.0.0/29",
        labels={"tpuctl-stack": "s"},
        description="d",
        scheduling_config={"preemptible": True},
        service_account="mine@example.com",  # output only: the client's value is ignored
        state=State.READY,
    )
    operation = client.create_node(parent=PARENT, node_id="n", node=requested, timeout=60)
    assert operation.operation.name.startswith(f"{PARENT}/operations/")
    assert (
        operation.operation.metadata.type_url
        == "type.googleapis.com/google.cloud.common.OperationMetadata"
    )
    pending = client.get_node(name=NAME, timeout=60)
    assert pending.state is State.CREATING
    cloud.in_loop(cloud.host.gate.set)
    created = operation.result(timeout=60)
    existing = client.get_node(name=NAME, timeout=60)
    assert existing.health is tpu_v1.Node.Health.HEALTHY
    created.health = existing.health  # which the operation's response lacks
    assert created == existing
    assert created.state is State.READY
    assert created.api_version is ApiVersion.V1
    assert created.accelerator_type == "v3-8"
    assert created.tensorflow_version == "2.12.0"
    assert created.cidr_block == "10.2.0.0/29"
    assert created.description == "d"
    assert created.scheduling_config.preemptible
    assert dict(created.labels) == {"tpuctl-stack": "s"}
    number = cloud.project_number
    assert created.service_account == f"service-{number}@cloud-tpu.iam.gserviceaccount.com"
    (endpoint,) = created.network_endpoints
    assert (endpoint.ip_address, endpoint.port) == (created.ip_address, 8470)
    assert created.port == "8470"
    assert created.create_time is not None

    (spec,) = cloud.host.specs.values()
    assert spec.name == f"{PARENT}/v1nodes/n/workers/0"
    assert (spec.kind, spec.tensorflow, spec.node_id) == ("node", "2.12.0", "n")
    assert spec.endpoint.address == created.ip_address
    assert spec.service_account == created.service_account
    assert (
        cloud.in_loop(cloud.server.registry.access.identify, spec.access_token)
        == created.service_account
    )

    deletion = client.delete_node(name=NAME, timeout=60)
    assert deletion.result(timeout=60).name == NAME
    with pytest.raises(exceptions.NotFound):
        client.get_node(name=NAME, timeout=60)
    assert cloud.host.discarded == [spec.name]


def test_v1_node_stop_start_reimage(cloud: Any) -> None:
    client = client_of(cloud)
    create(client)
    request = {"name": NAME}
    stopped = client.stop_node(request=request, timeout=60).result(timeout=60)
    assert stopped.state is State.STOPPED
    assert cloud.host.count_running() == 0
    with pytest.raises(exceptions.InvalidArgument, match="not supported while in state STOP"):
        client.stop_node(request=request, timeout=60)
    started = client.start_node(request=request, timeout=60).result(timeout=60)
    assert started.state is State.READY
    assert cloud.host.count_running() == 1
    body = {"name": NAME, "tensorflow_version": "2.12.1"}
    imaged = client.reimage_node(request=body, timeout=60).result(timeout=60)
    assert (imaged.state, imaged.tensorflow_version) == (State.READY, "2.12.1")
    (spec,) = cloud.host.specs.values()
    assert spec.tensorflow == "2.12.1"
    assert client.get_node(name=NAME, timeout=60) == imaged


def test_failed_reimage_leaves_unknown_state(cloud: Any) -> None:
    client = client_of(cloud)
    create(client)
    cloud.host.broken = "no image for that"

    def reimage() -> None:
        request = {"name": NAME, "tensorflow_version": "2.11.0"}
        client.reimage_node(request=request, timeout=60).result(timeout=60)

    with pytest.raises(exceptions.GoogleAPICallError, match="no image for that"):
        reimage()
    remaining = client.get_node(name=NAME, timeout=60)
    assert (remaining.state, remaining.tensorflow_version) == (State.UNKNOWN, "2.12.0")


def test_failed_creation_leaves_nothing(cloud: Any) -> None:
    cloud.host.broken = "no room"
    client = client_of(cloud)
    with pytest.raises(exceptions.GoogleAPICallError, match="no room"):
        create(client)
    assert not list(client.list_nodes(parent=PARENT, timeout=60))
    assert cloud.host.discarded == [f"{PARENT}/v1nodes/n/workers/0"]


@pytest.mark.parametrize(
    ("zone", "fields", "expected"),
    [
        ("mars-north1-a", {}, 'The requested zone "mars-north1-a" is not supported.'),
        (ZONE, {"accelerator_type": "v99-8"}, 'accelerator type, "v99-8", could not be found'),
        (ZONE, {"accelerator_type": "v6e-4"}, "the accelerator v6e-4 was not found in zone"),
        ("asia-east1-c", {}, "the accelerator v3-8 was not found in zone asia-east1-c"),
        # tensorflow/tpu issue 877: a minor version alone is invalid.
        (ZONE, {"tensorflow_version": "2.4"}, 'The field "TensorflowVersion" cannot be "2.4".'),
        (ZONE, {"tensorflow_version": ""}, 'The field "TensorflowVersion" cannot be "".'),
        (ZONE, {"cidr_block": "10.2.0.0/33"}, '"CIDR Range" cannot be "10.2.0.0/33"'),
        (ZONE, {"cidr_block": "10.2.0.1/29"}, '"CIDR Range" cannot be "10.2.0.1/29"'),
        (ZONE, {"cidr_block": "10.2.0.0/30"}, '"CIDR Range" cannot be "10.2.0.0/30"'),
        (ZONE, {"cidr_block": "8.8.8.0/29"}, '"CIDR Range" cannot be "8.8.8.0/29"'),
        (ZONE, {"cidr_block": "anything"}, '"CIDR Range" cannot be "anything"'),
        (
            ZONE,
            {"cidr_block": "10.2.0.0/29", "use_service_networking": True},
            "use_service_networking",
        ),
        (ZONE, {"scheduling_config": {"preemptible": True, "reserved": True}}, "reserved"),
    ],
)
def test_unsupported_nodes_are_rejected(
    cloud: Any, zone: str, fields: dict[str, Any], expected: str
) -> None:
    parent = f"projects/{PROJECT}/locations/{zone}"
    text = refusal(cloud, exceptions.BadRequest, requested=node(**fields), parent=parent)
    assert expected in text
    assert re.search(r"\[EID: 0x[0-9a-f]+\]$", text)
    assert cloud.host.reserved == {}


def test_nodes_setting_denies_creation(cloud: Any) -> None:
    """terraform-provider-google issue 22526."""
    cloud.put_setting("nodes", "denied")
    message = refusal(cloud, exceptions.FailedPrecondition)
    assert message == (
        "Your request to provision TPU Node has been denied. Please migrate to TPU VM "
        "Architecture or contact Cloud TPU team to gain TPU Node access. https://cloud.google.com"
        "/tpu/docs/system-architecture-tpu-vm#from-tpu-node-to-tpu-vm"
    )
    assert cloud.host.reserved == {}
    cloud.put_setting("nodes", "allowed")
    create(client_of(cloud))


def test_duplicate_name_is_rejected_across_versions(
    cloud: Any,
) -> None:
    client = client_of(cloud)
    create(client)
    assert f"Resource '{NAME}' already exists" in refusal(cloud, exceptions.AlreadyExists)
    vm = tpu_v2.Node(accelerator_type="v3-8", runtime_version="tpu-ubuntu2204-base")

    def create_vm(node_id: str) -> None:
        operation = cloud.tpu().create_node(parent=PARENT, node_id=node_id, node=vm, timeout=60)
        operation.result(timeout=60)

    with pytest.raises(exceptions.AlreadyExists):
        create_vm("n")
    create_vm("vm")
    assert "already exists" in refusal(cloud, exceptions.AlreadyExists, node_id="vm")


def test_each_version_shows_nodes_of_the_other(cloud: Any) -> None:
    first, second = client_of(cloud), cloud.tpu()
    created = create(first, "classic", node(labels={"a": "b"}))
    vm = tpu_v2.Node(accelerator_type="v2-8", runtime_version="tpu-ubuntu2204-base")
    second.create_node(parent=PARENT, node_id="vm", node=vm, timeout=60).result(timeout=60)

    by_v1 = {item.name.rpartition("/")[2]: item for item in first.list_nodes(parent=PARENT)}
    assert {name: item.api_version for name, item in by_v1.items()} == {
        "classic": ApiVersion.V1,
        "vm": ApiVersion.V2_ALPHA1,
    }
    created.health = by_v1["classic"].health  # which the operation's response lacks
    assert by_v1["classic"] == created
    assert by_v1["vm"] == first.get_node(name=f"{PARENT}/nodes/vm")
    assert by_v1["vm"].service_account.endswith("-compute@developer.gserviceaccount.com")
    assert by_v1["vm"].tensorflow_version == "tpu-ubuntu2204-base"

    by_v2 = {item.name.rpartition("/")[2]: item for item in second.list_nodes(parent=PARENT)}
    assert {name: item.api_version.name for name, item in by_v2.items()} == {
        "classic": "V1",
        "vm": "V2",
    }
    v2_view = second.get_node(name=created.name)
    assert v2_view == by_v2["classic"]
    assert v2_view.state is tpu_v2.Node.State.READY
    assert v2_view.service_account.email == created.service_account
    assert v2_view.network_endpoints[0].ip_address == created.ip_address
    assert dict(v2_view.labels) == {"a": "b"}
    network = f"projects/{PROJECT}/global/networks/default"
    assert v2_view.network_config.network == network

    request = {"name": created.name}
    stopped = second.stop_node(request=request, timeout=60).result(timeout=60)
    assert stopped == second.get_node(name=created.name)
    second.delete_node(name=created.name, timeout=60).result(timeout=60)
    with pytest.raises(exceptions.BadRequest, match="API version V2"):
        first.delete_node(name=f"{PARENT}/nodes/vm", timeout=60)
    assert [item.name for item in first.list_nodes(parent=PARENT)] == [f"{PARENT}/nodes/vm"]
    assert cloud.host.count_running() == 1


def test_node_lists_are_paginated_and_span_zones(cloud: Any) -> None:
    client = client_of(cloud)
    for index in range(3):
        create(client, f"n{index}")
    far = f"projects/{PROJECT}/locations/us-central1-a"
    create(client, "far", parent=far)
    request = {"parent": PARENT, "page_size": 2}
    pages = [
        [item.name.rpartition("/")[2] for item in page.nodes]
        for page in client.list_nodes(request=request, timeout=60).pages
    ]
    assert pages == [["n0", "n1"], ["n2"]]
    everywhere = client.list_nodes(parent=f"projects/{PROJECT}/locations/-", timeout=60)
    assert {item.name.split("/")[3] for item in everywhere} == {ZONE, "us-central1-a"}


def test_list_node_versions_and_types(cloud: Any) -> None:
    client = client_of(cloud)
    versions = [version.version for version in client.list_tensor_flow_versions(parent=PARENT)]
    assert {"2.12.0", "pytorch-1.13"} <= set(versions)
    assert "2.12" not in versions
    name = f"{PARENT}/tensorflowVersions/2.12.0"
    assert client.get_tensor_flow_version(name=name).version == "2.12.0"
    with pytest.raises(exceptions.NotFound):
        client.get_tensor_flow_version(name=f"{PARENT}/tensorflowVersions/2.99.0")
    types = {accelerator.type_ for accelerator in client.list_accelerator_types(parent=PARENT)}
    assert {"v2-8", "v3-8"} <= types
    assert not any(name.startswith(("v4", "v5", "v6")) for name in types)
    assert client.get_accelerator_type(name=f"{PARENT}/acceleratorTypes/v3-8").type_ == "v3-8"
    with pytest.raises(exceptions.NotFound):
        client.get_accelerator_type(name=f"{PARENT}/acceleratorTypes/v6e-4")


def test_plain_rest_matches_grpc(cloud: Any) -> None:
    """As called by stdlib programs on machines and by gcloud."""

    def call(verb: str, path: str, body: Any = None) -> Any:
        answer = cloud.request(verb, f"/v1/{path}", json=body)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()

    body = {
        "acceleratorType": "v3-8",
        "tensorflowVersion": "2.12.0",
        "network": "default",
        "schedulingConfig": {"preemptible": False},
    }
    created = call("POST", f"{PARENT}/nodes?nodeId=n&alt=json", body)
    assert created["metadata"]["@type"].endswith("google.cloud.common.OperationMetadata")
    assert created["metadata"]["apiVersion"] == "v1"
    client = client_of(cloud)
    request = {"name": created["name"]}
    while not client.get_operation(request=request, timeout=60).done:
        pass
    ended = call("GET", created["name"])
    assert ended["response"]["@type"] == "type.googleapis.com/google.cloud.tpu.v1.Node"
    response = call("GET", NAME)
    assert isinstance(response["serviceAccount"], str)
    assert response["port"] == "8470"
    assert response["networkEndpoints"] == [{"ipAddress": response["ipAddress"], "port": 8470}]
    assert (response["state"], response["health"], response["apiVersion"]) == (
        "READY",
        "HEALTHY",
        "V1",
    )
    assert call("GET", f"{PARENT}/nodes")["nodes"] == [response]
    assert call("GET", f"projects/{PROJECT}/locations/-/nodes")["nodes"] == [response]
    assert call("GET", f"{PARENT}/operations")["operations"][0]["name"] == created["name"]
    assert call("GET", f"{PARENT}/tensorflowVersions/2.12.0")["version"] == "2.12.0"
    assert call("GET", f"{PARENT}/acceleratorTypes/v3-8")["type"] == "v3-8"
    zones = call("GET", f"projects/{PROJECT}/locations")["locations"]
    assert ZONE in [location["locationId"] for location in zones]
    assert call("GET", PARENT)["locationId"] == ZONE
    assert call("POST", f"{NAME}:stop", {})["metadata"]["verb"] == "stop"
    assert call("DELETE", NAME)["metadata"]["verb"] == "delete"


def test_disabled_api_is_rejected(new_cloud: Any) -> None:
    message = refusal(new_cloud, exceptions.Forbidden)
    assert "Cloud TPU API has not been used in project" in message


async def test_restart_reboots_ready_nodes(make_cloud: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("tpu", "compute")
    await asyncio.to_thread(create, client_of(cloud))
    await cloud.server.close()
    restarted = await make_cloud()
    await async_until(restarted.host.count_running, "a machine running")
    (spec,) = restarted.host.specs.values()
    assert spec.kind == "node"


def test_v1_stockout_fails_creation(cloud: Any) -> None:
    """The wording is from skypilot 0.14.1 and gsoc-wav2vec2 issue 11."""
    cloud.in_loop(cloud.server.registry.faults.add, {"kind": "stockout", "zone": ZONE})
    message = refusal(cloud, exceptions.ResourceExhausted)
    assert message.startswith(
        f'There is no more capacity in the zone "{ZONE}"; you can try in another zone where Cloud '
        "TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0x"
    )
    client = client_of(cloud)
    assert not list(client.list_nodes(parent=PARENT, timeout=60))
    create(client)


async def test_preempted_node_cannot_be_started(cloud: Any) -> None:
    """`gcloud compute tpus create --help`: "Preemptible TPUs cannot be restarted"."""
    client = client_of(cloud)
    await asyncio.to_thread(create, client)
    await cloud.server.registry.machine_service(NAME).preempt(NAME)
    async with asyncio.timeout(20):
        while (
            node_found := await asyncio.to_thread(client.get_node, name=NAME, timeout=60)
        ).state is State.READY:
            await asyncio.sleep(0.01)
    assert node_found.state is State.PREEMPTED
    assert cloud.host.count_running() == 0
    with pytest.raises(exceptions.InvalidArgument, match="not supported while in state PREEMPTED"):
        await asyncio.to_thread(client.start_node, request={"name": NAME}, timeout=60)
    deletion = await asyncio.to_thread(client.delete_node, name=NAME, timeout=60)
    await asyncio.to_thread(deletion.result, timeout=60)


def test_v1alpha1_is_an_alias(cloud: Any) -> None:
    """Used by gcloud alpha and TensorFlow of 2018."""
    created = create(client_of(cloud))
    answer = cloud.request("GET", f"/v1alpha1/{NAME}")
    assert answer.json()["ipAddress"] == created.ip_address
    deleted = cloud.request("DELETE", f"/v1alpha1/{NAME}")
    path = f"/v1alpha1/{deleted.json()['name']}"
    assert cloud.request("GET", path).ok


@pytest.mark.parametrize("version", ["v1", "beta", "alpha"])
def test_compute_tracks_are_aliases(cloud: Any, version: str) -> None:
    path = f"/compute/{version}/projects/{PROJECT}/global/networks/default"
    answer = cloud.request("GET", path)
    assert answer.json()["name"] == "default"


# Networks and address ranges.


def test_overlapping_range_is_rejected(cloud: Any) -> None:
    """Google's wording: terraform-provider-google issue 12523."""
    client = client_of(cloud)
    create(client, "first", node(cidr_block="10.2.0.0/29"))
    network = f"projects/{PROJECT}/global/networks/default"
    expected = (
        f"Cloud TPU received an invalid argument. The 'CIDR Range' value \"10.2.0.0/28\" on "
        f'network "{network}" conflicts with another subnet or object in the (peered) customer '
        "network."
    )
    second = node(cidr_block="10.2.0.0/28")
    assert expected in refusal(cloud, exceptions.BadRequest, node_id="second", requested=second)
    # us-central1's automatic subnetwork, cloud.google.com/vpc/docs/subnets.
    overlapping = node(cidr_block="10.128.0.8/29")
    assert "conflicts" in refusal(cloud, exceptions.BadRequest, requested=overlapping)
    deletion = client.delete_node(name=f"{PARENT}/nodes/first", timeout=60)
    deletion.result(timeout=60)
    create(client, "second", second)


def test_free_range_is_chosen(cloud: Any) -> None:
    client = client_of(cloud)
    first = create(client, "first")
    second = create(client, "second", node(use_service_networking=True))
    third = create(client, "third", node(accelerator_type="v3-32"))
    assert len({first.cidr_block, second.cidr_block, third.cidr_block}) == 3
    assert all(item.cidr_block.endswith("/29") for item in (first, second, third))
    assert second.use_service_networking
    large = create(client, "large", node(accelerator_type="v3-256", cidr_block="10.3.0.0"))
    assert large.cidr_block == "10.3.0.0/26"
    assert len(large.network_endpoints) == 32


def test_missing_network_is_rejected(cloud: Any) -> None:
    message = refusal(cloud, exceptions.NotFound, requested=node(network="nowhere"))
    assert f"The resource 'projects/{PROJECT}/global/networks/nowhere' was not found" in message


@pytest.mark.parametrize("key", ["id", "number"])
def test_network_by_full_link(cloud: Any, key: str) -> None:
    project = cloud.in_loop(cloud.server.registry.projects.require, PROJECT)[key]
    full = f"https://www.googleapis.com/compute/v1/projects/{project}/global/networks/default"
    created = create(client_of(cloud), "n", node(network=full))
    assert created.network == "global/networks/default"
