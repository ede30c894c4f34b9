"""Cloud TPU v2 with its official client, over gRPC and over REST."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2
from google.protobuf import field_mask_pb2

from tests.support.locations import PARENT, PROJECT, ZONE

RUNTIME = "tpu-ubuntu2204-base"
State = tpu_v2.Node.State

both = pytest.mark.parametrize("transport", ["grpc", "rest"])


def node(**fields: Any) -> tpu_v2.Node:
    return tpu_v2.Node(**{"accelerator_type": "v3-8", "runtime_version": RUNTIME, **fields})


def create(
    client: Any, node_id: str, requested: tpu_v2.Node | None = None, parent: str = PARENT
) -> Any:
    operation = client.create_node(
        parent=parent, node_id=node_id, node=requested or node(), timeout=60
    )
    return operation.result(timeout=60)


@both
def test_node_lifecycle(cloud: Any, transport: str) -> None:
    cloud.host.gate.clear()
    client = cloud.tpu(transport)
    operation = client.create_node(
        parent=PARENT,
        node_id="one",
        node=node(labels={"tpuctl-stack": "s"}, metadata={"ssh-keys": "u:k"}, tags=["t"]),
        timeout=60,
    )
    assert operation.operation.name.startswith(f"{PARENT}/operations/")
    assert (
        operation.operation.metadata.type_url
        == "type.googleapis.com/google.cloud.common.OperationMetadata"
    )
    name = f"{PARENT}/nodes/one"
    found_node = client.get_node(name=name, timeout=60)
    assert found_node.state is State.CREATING
    assert not operation.operation.done
    cloud.in_loop(cloud.host.gate.set)
    created = operation.result(timeout=60)
    found_node = client.get_node(name=name, timeout=60)
    assert created.health is tpu_v2.Node.Health.HEALTH_UNSPECIFIED  # of the operation's response
    created.health = found_node.health
    assert created == found_node
    assert found_node.state is State.READY
    assert found_node.health is tpu_v2.Node.Health.HEALTHY
    assert found_node.name == name
    assert found_node.id > 0
    assert found_node.api_version is tpu_v2.Node.ApiVersion.V2
    assert dict(found_node.labels) == {"tpuctl-stack": "s"}
    assert list(found_node.tags) == ["t"]
    assert re.fullmatch(
        r"\d{12}-compute@developer\.gserviceaccount\.com", found_node.service_account.email
    )
    assert [endpoint.port for endpoint in found_node.network_endpoints] == [8470]
    assert cloud.host.count_running() == 1
    cloud.host.gate.clear()
    operation = client.delete_node(name=name, timeout=60)
    deleting = client.get_node(name=name, timeout=60)
    assert deleting.state is State.DELETING
    cloud.in_loop(cloud.host.gate.set)
    operation.result(timeout=60)
    with pytest.raises(exceptions.NotFound):
        client.get_node(name=name, timeout=60)
    assert cloud.host.discarded == [f"{name}/workers/0"]


def test_grpc_and_rest_return_same_nodes(cloud: Any) -> None:
    grpc, rest = cloud.tpu("grpc"), cloud.tpu("rest")
    create(grpc, "made-over-grpc", node(network_config={"enable_external_ips": True}))
    create(rest, "made-over-rest")
    assert list(grpc.list_nodes(parent=PARENT, timeout=60)) == list(
        rest.list_nodes(parent=PARENT, timeout=60)
    )
    for name in ("made-over-grpc", "made-over-rest"):
        full = f"{PARENT}/nodes/{name}"
        assert grpc.get_node(name=full, timeout=60) == rest.get_node(name=full, timeout=60)
    request = {"name": PARENT}
    response = grpc.list_operations(request=request, timeout=60)
    assert len(response.operations) == 2
    assert response == rest.list_operations(request=request, timeout=60)
    errors = []
    for client in (grpc, rest):
        with pytest.raises(exceptions.NotFound) as caught:
            client.get_node(name=f"{PARENT}/nodes/missing", timeout=60)
        errors.append(caught.value.message)
    assert errors[0] in errors[1]


@both
@pytest.mark.parametrize(
    ("zone", "requested", "expected"),
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
        (ZONE, node(runtime_version="TPU VM"), '"TPU VM" was not found'),
        (ZONE, node(runtime_version=""), "runtime_version"),
        (ZONE, node(runtime_version="v2-alpha-tpuv6e"), "does not support"),
    ],
)
def test_unsupported_nodes_are_rejected(
    cloud: Any, transport: str, zone: str, requested: tpu_v2.Node, expected: str
) -> None:
    client = cloud.tpu(transport)
    parent = f"projects/{PROJECT}/locations/{zone}"
    with pytest.raises(exceptions.BadRequest) as caught:
        create(client, "n", requested, parent)
    assert expected in caught.value.message
    assert "[EID: 0x" in caught.value.message
    assert not list(client.list_nodes(parent=parent, timeout=60))


@pytest.mark.parametrize("node_id", ["", "Big", "1st", "a-", "x" * 64, "a.b"])
def test_invalid_node_id_is_rejected(cloud: Any, node_id: str) -> None:
    with pytest.raises(exceptions.BadRequest):
        create(cloud.tpu(), node_id)


@both
def test_duplicate_node_name_is_rejected(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    create(client, "twin")
    kind = exceptions.Conflict
    with pytest.raises(kind) as caught:
        create(client, "twin")
    assert f"Resource '{PARENT}/nodes/twin' already exists" in caught.value.message
    (detail,) = caught.value.details
    name = detail["resourceName"] if isinstance(detail, dict) else detail.resource_name
    assert name == f"{PARENT}/nodes/twin"


@both
def test_disabled_tpu_api_error(new_cloud: Any, transport: str) -> None:
    client = new_cloud.tpu(transport)
    with pytest.raises(exceptions.Forbidden) as caught:
        create(client, "n")
    error = caught.value
    assert "Cloud TPU API has not been used in project" in error.message
    assert error.reason == "SERVICE_DISABLED"
    assert error.domain == "googleapis.com"
    assert error.metadata["service"] == "tpu.googleapis.com"


def test_unknown_project_is_denied(cloud: Any) -> None:
    with pytest.raises(exceptions.PermissionDenied) as caught:
        create(cloud.tpu(), "n", None, f"projects/missing/locations/{ZONE}")
    assert caught.value.reason == "CONSUMER_INVALID"


def test_missing_network_is_rejected(cloud: Any) -> None:
    requested = node(network_config={"network": "nowhere"})
    with pytest.raises(exceptions.NotFound) as caught:
        create(cloud.tpu(), "n", requested)
    assert f"'projects/{PROJECT}/global/networks/nowhere' was not found" in caught.value.message


def test_slice_has_one_machine_per_worker(cloud: Any) -> None:
    requested = node(accelerator_type="v3-32", network_config={"enable_external_ips": True})
    created = create(cloud.tpu(), "slice", requested)
    addresses = [endpoint.ip_address for endpoint in created.network_endpoints]
    assert len(set(addresses)) == 4
    assert [e.access_config.external_ip for e in created.network_endpoints] == addresses
    specs = [cloud.host.specs[f"{created.name}/workers/{index}"] for index in range(4)]
    assert [spec.worker for spec in specs] == [0, 1, 2, 3]
    assert [endpoint.address for endpoint in specs[2].endpoints] == addresses
    assert specs[0].service_account == created.service_account.email
    assert (
        cloud.in_loop(cloud.server.registry.access.identify, specs[0].access_token)
        == specs[0].service_account
    )


def test_no_external_address_by_default(cloud: Any) -> None:
    created = create(cloud.tpu(), "inside")
    assert not created.network_endpoints[0].access_config.external_ip
    assert created.network_endpoints[0].ip_address


def test_ssh_port_is_in_node_metadata(cloud: Any) -> None:
    cloud.host.ssh_port = 2201
    client = cloud.tpu()
    created = create(client, "high", node(metadata={"a": "b"}))
    assert dict(created.metadata) == {"a": "b", "tpuctl-ssh-port": "2201"}
    changed = update(client, created.name, metadata={"c": "d"})
    assert dict(changed.metadata) == {"c": "d", "tpuctl-ssh-port": "2201"}
    # An explicit value wins.
    moved = update(client, created.name, metadata={"tpuctl-ssh-port": "2202"})
    assert dict(moved.metadata) == {"tpuctl-ssh-port": "2202"}


def update(client: Any, name: str, **fields: Any) -> Any:
    operation = client.update_node(
        node=tpu_v2.Node(name=name, **fields),
        update_mask=field_mask_pb2.FieldMask(paths=list(fields)),
        timeout=60,
    )
    return operation.result(timeout=60)


@both
def test_update_changes_only_masked_fields(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    created = create(client, "n", node(labels={"keep": "me"}, description="old"))
    changed = update(
        client, created.name, description="new", metadata={"ssh-keys": "u:k2"}, tags=["x"]
    )
    assert changed.description == "new"
    assert dict(changed.labels) == {"keep": "me"}
    assert list(changed.tags) == ["x"]
    found_node = client.get_node(name=created.name, timeout=60)
    assert found_node == changed
    spec = cloud.host.specs[f"{created.name}/workers/0"]
    assert spec.metadata["ssh-keys"] == "u:k2"
    with pytest.raises(exceptions.BadRequest):
        update(client, created.name, runtime_version="other")


@both
def test_external_addresses_can_be_added_and_removed(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    created = create(client, "n")
    for has_external in (True, False):
        operation = client.update_node(
            node=tpu_v2.Node(
                name=created.name, network_config={"enable_external_ips": has_external}
            ),
            update_mask=field_mask_pb2.FieldMask(paths=["network_config.enable_external_ips"]),
        )
        changed = operation.result(timeout=60)
        assert changed.network_config.enable_external_ips is has_external
        assert changed.network_config.network == created.network_config.network
        assert bool(changed.network_endpoints[0].access_config.external_ip) is has_external


def test_attached_data_disk_must_exist(cloud: Any) -> None:
    client = cloud.tpu()
    created = create(client, "n")
    disk = {"source_disk": f"projects/{PROJECT}/zones/{ZONE}/disks/absent"}
    with pytest.raises(exceptions.NotFound, match="disks/absent"):
        update(client, created.name, data_disks=[disk])


def test_machines_get_only_ssh_keys_of_project_metadata(cloud: Any) -> None:
    created = create(cloud.tpu(), "n")
    items = [{"key": "ssh-keys", "value": "u:k"}, {"key": "startup-script", "value": "true"}]
    path = f"/compute/v1/projects/{PROJECT}/setCommonInstanceMetadata"
    answer = cloud.request("POST", path, json={"items": items})
    assert answer.ok, answer.text
    later = create(cloud.tpu(), "later")
    for vm in (created, later):
        spec = cloud.host.specs[f"{vm.name}/workers/0"]
        assert spec.project_metadata == {"ssh-keys": "u:k"}


@both
def test_stop_and_start(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    created = create(client, "n")

    def run(verb: str) -> Any:
        method = getattr(client, f"{verb}_node")
        return method(request={"name": created.name}, timeout=60).result(timeout=60)

    assert run("stop").state is State.STOPPED
    assert cloud.host.count_running() == 0
    with pytest.raises(exceptions.BadRequest) as caught:
        run("stop")
    assert "stop is not supported while in state STOPPED" in caught.value.message
    assert run("start").state is State.READY
    assert cloud.host.count_running() == 1


def test_failed_boot_fails_creation(cloud: Any) -> None:
    cloud.host.broken = "no image for this runtime"
    client = cloud.tpu()
    with pytest.raises(exceptions.GoogleAPICallError) as caught:
        create(client, "n")
    assert "no image for this runtime" in caught.value.message
    assert not list(client.list_nodes(parent=PARENT, timeout=60))
    cloud.host.broken = ""
    created = create(client, "n")
    assert created.state is State.READY


def test_node_lists_are_paginated_and_span_zones(cloud: Any) -> None:
    client = cloud.tpu("rest")
    for index in range(5):
        create(client, f"n{index}")
    create(
        client,
        "far",
        node(accelerator_type="v5litepod-4", runtime_version=RUNTIME_V5E),
        f"projects/{PROJECT}/locations/us-west4-a",
    )
    pager = client.list_nodes(request={"parent": PARENT, "page_size": 2}, timeout=60)
    pages = [[item.name.rpartition("/")[2] for item in page.nodes] for page in pager.pages]
    assert pages == [["n0", "n1"], ["n2", "n3"], ["n4"]]
    everywhere = client.list_nodes(parent=f"projects/{PROJECT}/locations/-", timeout=60)
    assert {item.name.split("/")[3] for item in everywhere} == {ZONE, "us-west4-a"}


RUNTIME_V5E = "v2-alpha-tpuv5-lite"


@both
def test_guest_attributes_have_the_host_keys(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    created = create(client, "n", node(accelerator_type="v3-32"))

    def host_keys(workers: list[str]) -> list[str]:
        answer = client.get_guest_attributes(
            request={"name": created.name, "worker_ids": workers, "query_path": "hostkeys/"},
            timeout=60,
        )
        return [entry.query_value.items[0].value for entry in answer.guest_attributes]

    assert host_keys([""]) == [f"KEY-OF-{index}" for index in range(4)]
    assert host_keys(["2"]) == ["KEY-OF-2"]
    with pytest.raises(exceptions.BadRequest):
        host_keys(["4"])


def test_zone_of_v4_is_closed_until_the_setting_opens_it(cloud: Any) -> None:
    """As for projects that are not on Google's allowlist (public reports)."""
    parent = f"projects/{PROJECT}/locations/us-central2-b"
    requested = node(accelerator_type="v4-8")
    with pytest.raises(exceptions.Forbidden) as caught:
        create(cloud.tpu("rest"), "n", requested, parent)
    assert "Permission denied on 'locations/us-central2-b' (or it may not exist)" in str(
        caught.value
    )
    assert caught.value.reason == "LOCATION_POLICY_VIOLATED"
    cloud.in_loop(cloud.server.registry.settings.change, {"zones": {"us-central2-b": True}})
    created = create(cloud.tpu("rest"), "n", requested, parent)
    assert created.accelerator_type == "v4-8"


@pytest.mark.parametrize(
    ("accelerator_type", "zone", "runtime"),
    [
        ("v5litepod-4", "us-west4-a", "v2-tpuv5-litepod"),  # of Google's samples
        ("v3-8", ZONE, "tpu-vm-tf-2.17.0-pjrt"),  # of their tests
        ("v3-8", ZONE, "tpu-vm-of-tomorrow"),  # Google has more than it documents
    ],
)
def test_runtimes_that_google_may_have_are_accepted(
    cloud: Any, accelerator_type: str, zone: str, runtime: str
) -> None:
    requested = node(accelerator_type=accelerator_type, runtime_version=runtime)
    parent = f"projects/{PROJECT}/locations/{zone}"
    created = create(cloud.tpu("grpc"), "n", requested, parent)
    assert created.runtime_version == runtime


@both
def test_list_types_runtimes_and_locations(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    types = {t.type_: t for t in client.list_accelerator_types(parent=PARENT, timeout=60)}
    assert "v3-8" in types
    assert "v4-8" not in types
    assert types["v3-8"].accelerator_configs[0].topology == "2x2"
    name = f"{PARENT}/acceleratorTypes/v3-8"
    assert client.get_accelerator_type(name=name, timeout=60) == types["v3-8"]
    versions = [v.version for v in client.list_runtime_versions(parent=PARENT, timeout=60)]
    assert RUNTIME in versions
    runtime = client.get_runtime_version(name=f"{PARENT}/runtimeVersions/{RUNTIME}", timeout=60)
    assert runtime.version == RUNTIME
    request = {"name": f"projects/{PROJECT}"}
    locations = client.list_locations(request=request, timeout=60).locations
    assert ZONE in {location.location_id for location in locations}
    identity = client.generate_service_identity(request={"parent": PARENT}, timeout=60).identity
    assert re.fullmatch(r"service-\d+@gcp-sa-tpu\.iam\.gserviceaccount\.com", identity.email)


@both
def test_finished_operation_can_be_deleted(cloud: Any, transport: str) -> None:
    client = cloud.tpu(transport)
    operation = client.create_node(parent=PARENT, node_id="n", node=node(), timeout=60)
    operation.result(timeout=60)
    request = {"name": operation.operation.name}
    assert client.get_operation(request=request, timeout=60).done
    client.delete_operation(request=request, timeout=60)
    with pytest.raises(exceptions.NotFound):
        client.get_operation(request=request, timeout=60)
