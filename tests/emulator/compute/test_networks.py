"""Subnetworks, routes and addresses: ranges in use and their users."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2

from tests.support.locations import PROJECT

IN_PROJECT = {"project": PROJECT}
DEFAULT = "projects/local-project/global/networks/default"


def make_network(engine: Any, name: str, **more: Any) -> None:
    request = {**IN_PROJECT, "network_resource": {"name": name, **more}}
    engine.wait_ok(engine.networks.insert_unary(request, timeout=60))


def delete_network(engine: Any, name: str) -> Any:
    return engine.networks.delete_unary({**IN_PROJECT, "network": name}, timeout=60)


def test_auto_mode_ranges_match_google(engine: Any) -> None:
    everywhere = dict(engine.subnetworks.aggregated_list(IN_PROJECT))
    ranges = {
        scope: [subnetwork.ip_cidr_range for subnetwork in part.subnetworks]
        for scope, part in everywhere.items()
    }
    assert ranges["regions/us-central1"] == ["10.128.0.0/20"]
    assert ranges["regions/europe-west4"] == ["10.164.0.0/20"]
    assert ranges["regions/us-east5"] == ["10.202.0.0/20"]
    assert all(len(part) == 1 for part in ranges.values())
    assert len({part[0] for part in ranges.values()}) == len(ranges)
    targets = {route.dest_range: route for route in engine.routes.list(IN_PROJECT)}
    assert set(targets) == {part[0] for part in ranges.values()} | {"0.0.0.0/0"}
    route = targets["10.164.0.0/20"]
    assert route.next_hop_network == engine.link + DEFAULT
    assert engine.routes.get({**IN_PROJECT, "route": route.name}, timeout=60) == route
    assert targets["0.0.0.0/0"].next_hop_gateway.endswith("/default-internet-gateway")


def test_private_google_access(engine: Any) -> None:
    which = {**engine.in_region, "subnetwork": "default"}
    assert not engine.subnetworks.get(which, timeout=60).private_ip_google_access
    body = {"private_ip_google_access": True}
    request = {
        **which,
        "subnetworks_set_private_ip_google_access_request_resource": body,
    }
    begun = engine.subnetworks.set_private_ip_google_access_unary(request, timeout=60)
    engine.wait_ok(begun)
    changed = engine.subnetworks.get(which, timeout=60)
    assert changed.private_ip_google_access
    (listed,) = engine.subnetworks.list(engine.in_region)
    assert listed == changed
    other = engine.subnetworks.get({**which, "region": "us-central1"}, timeout=60)
    assert not other.private_ip_google_access
    patch = {"private_ip_google_access": False, "fingerprint": changed.fingerprint}
    request = {**which, "subnetwork_resource": patch}
    engine.wait_ok(engine.subnetworks.patch_unary(request, timeout=60))
    assert not engine.subnetworks.get(which, timeout=60).private_ip_google_access
    with pytest.raises(exceptions.PreconditionFailed):
        engine.subnetworks.patch_unary(request, timeout=60)
    with pytest.raises(exceptions.BadRequest):
        engine.subnetworks.delete_unary(which, timeout=60)


def test_custom_subnetworks(engine: Any) -> None:
    def insert(name: str, cidr: str) -> Any:
        row = {"name": name, "network": "global/networks/own", "ip_cidr_range": cidr}
        request = {**engine.in_region, "subnetwork_resource": row}
        return engine.subnetworks.insert_unary(request, timeout=60)

    make_network(engine, "own", auto_create_subnetworks=False)
    controller = engine.controller(network_interfaces=[{"network": "global/networks/own"}])
    with pytest.raises(exceptions.BadRequest) as caught:
        engine.insert(controller)
    assert "Subnetwork should be specified" in caught.value.message
    engine.wait_ok(insert("near", "10.9.0.0/24"))
    with pytest.raises(exceptions.BadRequest) as caught:
        insert("again", "10.9.0.128/25")
    assert "conflicts with existing subnetwork 'near'" in caught.value.message
    network = engine.networks.get({**IN_PROJECT, "network": "own"}, timeout=60)
    assert [link.rpartition("/regions/")[2] for link in network.subnetworks] == [
        "europe-west4/subnetworks/near"
    ]
    near = [{"subnetwork": "regions/europe-west4/subnetworks/near"}]
    engine.wait_ok(engine.insert(engine.controller(network_interfaces=near)))
    which = {**engine.in_region, "subnetwork": "near"}
    code, _ = engine.wait_error(engine.subnetworks.delete_unary(which, timeout=60))
    assert code == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
    instance = {**engine.in_zone, "instance": "controller"}
    engine.wait_ok(engine.instances.delete_unary(instance, timeout=60))
    code, text = engine.wait_error(delete_network(engine, "own"))
    assert code == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
    assert text.endswith("regions/europe-west4/subnetworks/near'")
    engine.wait_ok(engine.subnetworks.delete_unary(which, timeout=60))
    engine.wait_ok(delete_network(engine, "own"))


def test_network_in_use_cannot_be_deleted(engine: Any) -> None:
    parent = "projects/local-project/locations/europe-west4-a"
    make_network(engine, "used")
    controller = engine.controller(network_interfaces=[{"network": "global/networks/used"}])
    engine.wait_ok(engine.insert(controller))
    code, text = engine.wait_error(delete_network(engine, "used"))
    assert code == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
    assert text == (
        "The network resource 'projects/local-project/global/networks/used' is already "
        "being used by 'projects/local-project/zones/europe-west4-a/instances/controller'"
    )
    instance = {**engine.in_zone, "instance": "controller"}
    engine.wait_ok(engine.instances.delete_unary(instance, timeout=60))
    node = tpu_v2.Node(
        accelerator_type="v3-8",
        runtime_version="tpu-ubuntu2204-base",
        network_config={"network": "used"},
    )
    client = engine.cloud.tpu()
    client.create_node(parent=parent, node_id="n", node=node, timeout=60).result(timeout=60)
    name = f"{parent}/nodes/n"
    _, text = engine.wait_error(delete_network(engine, "used"))
    assert text.endswith(f"is already being used by '{name}'")
    engine.cloud.tpu().delete_node(name=name, timeout=60).result(timeout=60)
    engine.wait_ok(delete_network(engine, "used"))


def test_tpu_node_uses_its_network(engine: Any) -> None:
    parent = "/v1/projects/local-project/locations/us-central1-b/nodes"

    make_network(engine, "used")
    body = {
        "acceleratorType": "v3-8",
        "tensorflowVersion": "2.12.0",
        "network": "global/networks/used",
        "cidrBlock": "10.2.0.0/29",
    }
    answer = engine.cloud.request("POST", f"{parent}?nodeId=n", json=body)
    assert answer.status_code == 200, answer.text
    code, text = engine.wait_error(delete_network(engine, "used"))
    assert code == "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"
    assert text.endswith("/locations/us-central1-b/nodes/n'")


def test_regional_addresses(engine: Any) -> None:
    def insert(name: str, **more: Any) -> Any:
        request = {**engine.in_region, "address_resource": {"name": name, **more}}
        return engine.addresses.insert_unary(request, timeout=60)

    for name in ("a", "b"):
        engine.wait_ok(insert(name, labels={"stack": "ignored"}))
        which = {**engine.in_region, "resource": name}
        before = engine.addresses.get({**engine.in_region, "address": name}, timeout=60)
        assert not before.labels
        labels = {"labels": {"stack": name}, "label_fingerprint": before.label_fingerprint}
        body = {"region_set_labels_request_resource": labels}
        engine.wait_ok(engine.addresses.set_labels_unary({**which, **body}, timeout=60))
    addresses = {address.name: address for address in engine.addresses.list(engine.in_region)}
    assert {address.status for address in addresses.values()} == {"RESERVED"}
    assert addresses["a"].address != addresses["b"].address
    everywhere = dict(engine.addresses.aggregated_list({**IN_PROJECT, "filter": "labels.stack=b"}))
    assert [address.name for address in everywhere["regions/europe-west4"].addresses] == ["b"]
    with pytest.raises(exceptions.Conflict):
        insert("a")
    which = {**engine.in_region, "address": "a"}
    assert engine.addresses.get(which, timeout=60) == addresses["a"]
    engine.wait_ok(engine.addresses.delete_unary(which, timeout=60))
    assert [address.name for address in engine.addresses.list(engine.in_region)] == ["b"]


def test_service_networking_ranges(engine: Any) -> None:
    def insert(name: str, **more: Any) -> Any:
        row = {
            "name": name,
            "purpose": "VPC_PEERING",
            "address_type": "INTERNAL",
            "prefix_length": 16,
            "network": DEFAULT,
            **more,
        }
        request = {**IN_PROJECT, "address_resource": row}
        return engine.global_addresses.insert_unary(request, timeout=60)

    engine.wait_ok(insert("given", address="10.55.0.0"))
    engine.wait_ok(insert("chosen"))
    addresses = {address.name: address for address in engine.global_addresses.list(IN_PROJECT)}
    assert (addresses["given"].address, addresses["given"].prefix_length) == ("10.55.0.0", 16)
    assert addresses["chosen"].address not in ("", "10.55.0.0")
    assert addresses["chosen"].network == engine.link + DEFAULT
    everywhere = dict(engine.addresses.aggregated_list(IN_PROJECT))
    assert [address.name for address in everywhere["global"].addresses] == ["chosen", "given"]
    with pytest.raises(exceptions.BadRequest):
        insert("taken", address="10.55.128.0", prefix_length=24)
    with pytest.raises(exceptions.BadRequest):
        insert("subnetwork", address="10.164.0.0", prefix_length=24)
    with pytest.raises(exceptions.NotFound):
        insert("nowhere", network="global/networks/none")
    which = {**IN_PROJECT, "address": "given"}
    engine.wait_ok(engine.global_addresses.delete_unary(which, timeout=60))
    with pytest.raises(exceptions.NotFound):
        engine.global_addresses.get(which, timeout=60)
