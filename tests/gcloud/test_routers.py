"""Cloud NAT through the real gcloud."""

from __future__ import annotations

from tests.support.gcloud import Gcloud

ROUTERS = ("compute", "routers")
NATS = (*ROUTERS, "nats")
HERE = "--region=us-central1"
NAT = ("--router=way", HERE)
ADDRESSES = "--auto-allocate-nat-external-ips"


def test_nat_is_created_changed_and_deleted(gcloud: Gcloud) -> None:
    gcloud.run(*ROUTERS, "create", "way", "--network=default", HERE, "--description=ours")
    gcloud.run(*NATS, "create", "nat", *NAT, ADDRESSES, "--nat-custom-subnet-ip-ranges=default")
    [nat] = gcloud.json(*NATS, "list", *NAT)
    assert gcloud.json(*NATS, "describe", "nat", *NAT) == nat
    assert nat["sourceSubnetworkIpRangesToNat"] == "LIST_OF_SUBNETWORKS"
    [listed] = nat["subnetworks"]
    assert listed["sourceIpRangesToNat"] == ["PRIMARY_IP_RANGE"]
    assert listed["name"].endswith("/regions/us-central1/subnetworks/default")
    second = gcloud.run(
        *(*NATS, "create", "all", *NAT, ADDRESSES, "--nat-all-subnet-ip-ranges"), check=False
    )
    assert "resource.nats[1].sourceSubnetworkIpRangesToNat" in second.stderr
    gcloud.run(*NATS, "update", "nat", *NAT, "--min-ports-per-vm=128")
    assert gcloud.json(*NATS, "describe", "nat", *NAT)["minPortsPerVm"] == 128
    gcloud.run(*NATS, "delete", "nat", *NAT)
    [router] = gcloud.json(*ROUTERS, "list")
    assert (router["name"], router["description"], "nats" in router) == ("way", "ours", False)
    gcloud.run(*ROUTERS, "delete", "way", HERE)
    assert gcloud.json(*ROUTERS, "list") == []
