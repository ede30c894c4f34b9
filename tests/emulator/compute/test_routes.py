"""Routes of one's own, beside those that Google creates."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.callers import Member, grant, make_role
from tests.support.locations import PROJECT, PROJECT_NAME, ZONE

GATEWAY = f"projects/{PROJECT}/global/gateways/default-internet-gateway"
ROUTES = f"projects/{PROJECT}/global/routes"


def insert(engine: Any, name: str = "way", **more: Any) -> Any:
    route: dict[str, Any] = {"name": name, "network": "global/networks/default", "priority": 1000}
    route |= {"dest_range": "10.9.0.0/16"}
    route |= more or {"next_hop_gateway": GATEWAY}
    return engine.routes.insert_unary({"project": PROJECT, "route_resource": route}, timeout=60)


def get(engine: Any, name: str = "way") -> Any:
    return engine.routes.get({"project": PROJECT, "route": name}, timeout=60)


def delete(engine: Any, name: str = "way") -> Any:
    return engine.routes.delete_unary({"project": PROJECT, "route": name}, timeout=60)


def names(engine: Any) -> list[str]:
    return [route.name for route in engine.routes.list({"project": PROJECT})]


def test_route_is_created_listed_and_deleted(engine: Any) -> None:
    before = names(engine)
    operation = engine.wait_ok(insert(engine))
    assert operation.target_link == f"{engine.link}{ROUTES}/way"
    route = get(engine)
    assert (route.dest_range, route.priority) == ("10.9.0.0/16", 1000)
    assert route.network == f"{engine.link}projects/{PROJECT}/global/networks/default"
    assert route.next_hop_gateway == engine.link + GATEWAY
    assert route.self_link == f"{engine.link}{ROUTES}/way"
    assert sorted([*before, "way"]) == sorted(names(engine))
    with pytest.raises(exceptions.Conflict):
        insert(engine)
    engine.wait_ok(delete(engine))
    assert names(engine) == before
    with pytest.raises(exceptions.NotFound, match=f"The resource '{ROUTES}/way' was not found"):
        delete(engine)


def test_next_hop_is_an_address_or_an_instance(engine: Any) -> None:
    engine.wait_ok(engine.insert(engine.controller()))
    instance = f"zones/{ZONE}/instances/controller"
    more = {"tags": ["a"], "priority": 7, "description": "ours"}
    engine.wait_ok(insert(engine, next_hop_instance=instance, **more))
    route = get(engine)
    assert route.next_hop_instance == f"{engine.link}projects/{PROJECT}/{instance}"
    assert (list(route.tags), route.priority, route.description) == (["a"], 7, "ours")
    engine.wait_ok(insert(engine, "second", next_hop_ip="10.0.0.9"))
    assert get(engine, "second").next_hop_ip == "10.0.0.9"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"next_hop_ip": "10.0.0.9", "next_hop_gateway": GATEWAY}, "Exactly one of"),
        ({"tags": ["a"]}, "Exactly one of"),
        ({"next_hop_ip": "10.0.0"}, "Must be an IP address"),
        ({"next_hop_instance": f"zones/{ZONE}/instances/missing"}, "instance resource cannot be"),
        ({"next_hop_gateway": "global/gateways/other"}, "gateway resource cannot be found"),
        ({"next_hop_gateway": GATEWAY, "dest_range": "here"}, "CIDR"),
        ({"next_hop_gateway": GATEWAY, "priority": 70000}, "from 0 to 65535"),
        ({"next_hop_gateway": GATEWAY, "network": "global/networks/x"}, "network resource cannot"),
        ({"next_hop_gateway": GATEWAY, "network": ""}, "Required field 'resource.network'"),
    ],
)
def test_wrong_routes_are_refused(engine: Any, more: dict[str, Any], text: str) -> None:
    with pytest.raises(exceptions.BadRequest, match=text):
        insert(engine, **more)


def test_next_hops_that_are_not_emulated_are_refused_by_name(engine: Any) -> None:
    with pytest.raises(exceptions.MethodNotImplemented, match="nextHopVpnTunnel"):
        insert(engine, next_hop_vpn_tunnel="regions/us-central1/vpnTunnels/x")


def test_routes_that_google_creates_stay(engine: Any) -> None:
    generated = list(engine.routes.list({"project": PROJECT}))
    subnetwork = next(route for route in generated if route.next_hop_network)
    internet = next(route for route in generated if route.next_hop_gateway)
    with pytest.raises(exceptions.BadRequest, match="of a subnetwork cannot be deleted"):
        delete(engine, subnetwork.name)
    with pytest.raises(exceptions.MethodNotImplemented, match="default route"):
        delete(engine, internet.name)


def test_network_with_a_route_is_in_use(engine: Any) -> None:
    network = {"name": "own", "auto_create_subnetworks": False}
    request = {"project": PROJECT, "network_resource": network}
    engine.wait_ok(engine.networks.insert_unary(request, timeout=60))
    engine.wait_ok(insert(engine, network="global/networks/own", next_hop_gateway=GATEWAY))
    which = {"project": PROJECT, "network": "own"}
    code, text = engine.wait_error(engine.networks.delete_unary(which, timeout=60))
    assert (code, f"{ROUTES}/way" in text) == ("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", True)
    engine.wait_ok(delete(engine))
    engine.wait_ok(engine.networks.delete_unary(which, timeout=60))


def test_routes_need_their_permissions(engine: Any, cloud: Any) -> None:
    ann = Member(cloud, "ann")
    path = f"/compute/v1/{ROUTES}"
    body: dict[str, Any] = {
        "name": "way",
        "network": "global/networks/default",
        "destRange": "10.9.0.0/16",
    }
    body |= {"nextHopGateway": GATEWAY, "priority": 1000}
    status, text = ann.status_and_message("POST", path, json=body)
    assert (status, f"'compute.routes.create' permission for '{ROUTES}/way'" in text) == (403, True)
    role = make_role(cloud, "router", ["compute.routes.create", "compute.networks.updatePolicy"])
    grant(cloud, PROJECT_NAME, role, ann.name)
    assert ann.send("POST", path, json=body).ok
