"""What a public NAT of a Cloud Router translates, by the descriptions of RouterNat's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ROUTERS = "compute.routers"  # kind in the store
LISTED = "LIST_OF_SUBNETWORKS"
VMS = "ENDPOINT_TYPE_VM"
_PRIMARY = frozenset({"ALL_IP_RANGES", "PRIMARY_IP_RANGE"})


def translates(nat: Mapping[str, Any], subnetwork: str) -> bool:
    """Whether machines with primary addresses of this subnetwork reach the internet through it."""
    if VMS not in nat.get("endpointTypes", (VMS,)):
        return False
    if nat["sourceSubnetworkIpRangesToNat"] != LISTED:
        return True
    return any(
        entry["name"] == subnetwork and _PRIMARY & set(entry["sourceIpRangesToNat"])
        for entry in nat.get("subnetworks", ())
    )
