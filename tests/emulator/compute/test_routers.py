"""Cloud Routers with public NATs: what they may contain, and what has two of them."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions

from tests.support.callers import Member, grant, make_role
from tests.support.locations import PROJECT, PROJECT_NAME, REGION

NETWORK = f"projects/{PROJECT}/global/networks/default"
ROUTERS = f"projects/{PROJECT}/regions/{REGION}/routers"
SUBNETWORK = f"projects/{PROJECT}/regions/{REGION}/subnetworks/default"
WHICH = {"project": PROJECT, "region": REGION, "router": "way"}
OPTION = "source_subnetwork_ip_ranges_to_nat"
ALL = "ALL_SUBNETWORKS_ALL_IP_RANGES"


def nat(*ranges: str, name: str = "nat", **more: Any) -> dict[str, Any]:
    """Of these ranges of the subnetwork, or else of all."""
    fields = {"name": name, "nat_ip_allocate_option": "AUTO_ONLY", OPTION: ALL}
    if ranges:
        listed = {"name": SUBNETWORK, "source_ip_ranges_to_nat": list(ranges)}
        fields |= {OPTION: "LIST_OF_SUBNETWORKS", "subnetworks": [listed]}
    return {**fields, **more}


def insert(engine: Any, *nats: Any, name: str = "way", **more: Any) -> Any:
    router = {"name": name, "network": NETWORK, "nats": list(nats), **more}
    return engine.routers.insert_unary({**engine.in_region, "router_resource": router}, timeout=60)


def get(engine: Any) -> Any:
    return engine.routers.get(WHICH, timeout=60)


def test_router_is_created_listed_and_deleted(engine: Any) -> None:
    operation = engine.wait_ok(insert(engine, nat("PRIMARY_IP_RANGE"), description="ours"))
    assert operation.target_link == f"{engine.link}{ROUTERS}/way"
    router = get(engine)
    assert (router.network, router.description) == (engine.link + NETWORK, "ours")
    assert router.region == f"{engine.link}projects/{PROJECT}/regions/{REGION}"
    [created] = router.nats
    assert (created.type_, created.auto_network_tier) == ("PUBLIC", "PREMIUM")
    assert [each.name for each in created.subnetworks] == [engine.link + SUBNETWORK]
    assert list(engine.routers.list(engine.in_region)) == [router]
    scopes = dict(engine.routers.aggregated_list({"project": PROJECT}))
    assert list(scopes[f"regions/{REGION}"].routers) == [router]
    with pytest.raises(exceptions.Conflict, match="already exists"):
        insert(engine)
    engine.wait_ok(engine.routers.delete_unary(WHICH, timeout=60))
    with pytest.raises(exceptions.NotFound, match=f"The resource '{ROUTERS}/way' was not found"):
        engine.routers.delete_unary(WHICH, timeout=60)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (nat(), nat(), f"nats\\[0\\].*: '{ALL}'. Can not create new Nats since a Nat with option"),
        (nat(), nat("PRIMARY_IP_RANGE"), f"since a Nat with option {ALL} exists"),
        (nat("PRIMARY_IP_RANGE"), nat(), "since other Nats exist"),
        (nat("PRIMARY_IP_RANGE"), nat("PRIMARY_IP_RANGE"), "Can not specify PRIMARY_IP_RANGE"),
        (nat("ALL_IP_RANGES"), nat("PRIMARY_IP_RANGE"), "already configured with ALL_IP_RANGES"),
        (nat("PRIMARY_IP_RANGE"), nat("ALL_IP_RANGES"), "conflicts with the specified"),
    ],
)
def test_range_has_one_nat(engine: Any, first: Any, second: Any, text: str) -> None:
    """Also that of a router being created."""
    operation = insert(engine, first)
    with pytest.raises(exceptions.BadRequest, match=text):
        insert(engine, second, name="second")
    engine.wait_ok(operation)
    engine.wait_ok(insert(engine, name="second"))
    change = {**WHICH, "router": "second", "router_resource": {"nats": [second]}}
    with pytest.raises(exceptions.BadRequest, match=text):
        engine.routers.patch_unary(change, timeout=60)


@pytest.mark.parametrize(
    ("more", "error", "text"),
    [
        ({"network": ""}, exceptions.BadRequest, "Required field 'resource.network'"),
        ({"network": "global/networks/x"}, exceptions.BadRequest, "network resource cannot be"),
        ({"nats": [{"name": "nat"}]}, exceptions.BadRequest, "natIpAllocateOption' not specified"),
        ({"nats": [nat(name="Nat")]}, exceptions.BadRequest, "Must be a match of regex"),
        ({"nats": [nat(nat_ip_allocate_option="MANUAL_ONLY")]}, exceptions.BadRequest, "NAT IPs"),
        (
            {"nats": [nat(subnetworks=[{"name": "x"}])]},
            exceptions.BadRequest,
            r"nats\[0\]\.subnetworks\[0\]\.name': 'x'. The referenced subnetwork resource cannot",
        ),
        ({"nats": [nat(type_="PRIVATE")]}, exceptions.MethodNotImplemented, "Private NAT"),
        ({"bgp_peers": [{"name": "x"}]}, exceptions.MethodNotImplemented, "bgpPeers"),
    ],
)
def test_wrong_routers_are_refused(engine: Any, more: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        insert(engine, **more)


def test_network_and_subnetwork_with_a_nat_are_in_use(engine: Any) -> None:
    network = {"name": "own", "auto_create_subnetworks": False}
    request = {"project": PROJECT, "network_resource": network}
    engine.wait_ok(engine.networks.insert_unary(request, timeout=60))
    link = {"network": "global/networks/own"}
    part = {"name": "part", "ip_cidr_range": "10.9.0.0/24", **link}
    request = {**engine.in_region, "subnetwork_resource": part}
    engine.wait_ok(engine.subnetworks.insert_unary(request, timeout=60))
    listed = [{"name": f"regions/{REGION}/subnetworks/part"}]
    of_listed = {**nat("ALL_IP_RANGES"), "subnetworks": listed}
    engine.wait_ok(insert(engine, of_listed, **link))
    of_part = {**engine.in_region, "subnetwork": "part"}
    of_network = {"project": PROJECT, "network": "own"}
    for deletion in (
        engine.subnetworks.delete_unary(of_part, timeout=60),
        engine.networks.delete_unary(of_network, timeout=60),
    ):
        code, text = engine.wait_error(deletion)
        assert (code, f"{ROUTERS}/way" in text) == ("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", True)
    engine.wait_ok(engine.routers.delete_unary(WHICH, timeout=60))
    engine.wait_ok(engine.subnetworks.delete_unary(of_part, timeout=60))
    engine.wait_ok(engine.networks.delete_unary(of_network, timeout=60))


def test_routers_need_their_permissions(engine: Any, cloud: Any) -> None:
    ann = Member(cloud, "ann")
    body = {"name": "way", "network": NETWORK}
    status, text = ann.status_and_message("POST", f"/compute/v1/{ROUTERS}", json=body)
    assert (status, "'compute.routers.create' permission for" in text) == (403, True)
    role = make_role(cloud, "router", ["compute.routers.create", "compute.networks.updatePolicy"])
    grant(cloud, PROJECT_NAME, role, ann.name)
    assert ann.send("POST", f"/compute/v1/{ROUTERS}", json=body).ok
