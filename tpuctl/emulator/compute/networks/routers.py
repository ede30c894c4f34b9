"""Cloud Routers, as far as public Cloud NAT needs them: no BGP session is ever established."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpuctl.emulator.compute.core.collection import Collection, Row, check_name
from tpuctl.emulator.compute.core.context import NETWORKS, ComputeContext
from tpuctl.emulator.compute.core.errors import bad_field, unknown_reference
from tpuctl.emulator.compute.core.messages import LINK
from tpuctl.emulator.compute.core.supported_fields import ROUTER
from tpuctl.emulator.compute.networks.subnetworks import Subnetworks
from tpuctl.emulator.state.cloud_nat import LISTED, ROUTERS, VMS
from tpuctl.emulator.state.errors import invalid, unimplemented
from tpuctl.emulator.state.operations import Arguments
from tpuctl.emulator.state.resource_names import full_network, relative_name

_SOURCE = "sourceSubnetworkIpRangesToNat"
_ALL_RANGES = "ALL_SUBNETWORKS_ALL_IP_RANGES"
# What Google adds to a NAT in its responses (tests/recorded/compute/router-with-nat.toml).
_NAT_DEFAULTS = {
    "autoNetworkTier": "PREMIUM",
    "effectiveTcpTimeWaitTimeoutSec": 120,
    "endpointTypes": [VMS],
    "type": "PUBLIC",
}


class Routers(Collection):
    """`wire/network_policy.py` lets machines use their NATs."""

    kind, message, plural, field = ROUTERS, "Router", "routers", "router"
    scope, links, supported = "regions", ("network",), ROUTER

    def __init__(self, context: ComputeContext, subnetworks: Subnetworks) -> None:
        super().__init__(context)
        self._subnetworks = subnetworks

    def show(self, name: str, row: Row) -> Row:
        resource = {"encryptedInterconnectRouter": False, **super().show(name, row)}
        if "nats" in row:
            resource["nats"] = [_shown(nat) for nat in row["nats"]]
        return resource

    def complete(self, name: str, row: Row) -> Row:
        project = name.split("/")[1]
        if not row.get("network"):
            raise invalid("Required field 'resource.network' not specified", reason="required")
        network = full_network(self.context.registry.projects, project, row["network"])
        if self.store.get(NETWORKS, network) is None:
            raise unknown_reference("resource.network", row["network"], "network")
        nats: list[Row] = []
        for index, requested in enumerate(row.get("nats", ())):
            place = f"resource.nats[{index}]"
            nat = self._complete_nat(name, network, requested, place)
            for other in (*nats, *self._other_nats(name, network)):
                _refuse_overlap(nat, other, place)
            nats.append(nat)
        return {**row, "network": network, **({"nats": nats} if nats else {})}

    def _complete_nat(self, router: str, network: str, nat: Row, place: str) -> Row:
        check_name(nat.get("name", ""))
        if nat.get("type", "PUBLIC") != "PUBLIC":
            raise unimplemented("Private NAT")
        for field in ("natIpAllocateOption", _SOURCE):
            if field not in nat:
                raise invalid(f"Required field '{place}.{field}' not specified", reason="required")
        if nat["natIpAllocateOption"] == "MANUAL_ONLY" and not nat.get("natIps"):
            reason = "NAT IPs must be given with MANUAL_ONLY."  # the wording is a guess
            raise bad_field(f"{place}.natIps", "", reason)
        if "subnetworks" not in nat:
            return nat
        entries = [
            self._complete_entry(router, network, entry, f"{place}.subnetworks[{index}]")
            for index, entry in enumerate(nat["subnetworks"])
        ]
        return {**nat, "subnetworks": entries}

    def _complete_entry(self, router: str, network: str, entry: Row, place: str) -> Row:
        """A subnetwork of a list, by its full name."""
        reference = entry.get("name", "")
        full = relative_name(reference)
        if not full.startswith("projects/"):
            full = f"{router.rpartition('/routers/')[0]}/subnetworks/{full.rpartition('/')[2]}"
        subnetwork = self._subnetworks.find(full)
        if subnetwork is None or subnetwork["network"] != network:
            raise unknown_reference(f"{place}.name", reference, "subnetwork")
        return {"sourceIpRangesToNat": ["ALL_IP_RANGES"], **entry, "name": full}

    def _other_nats(self, name: str, network: str) -> Iterator[Row]:
        """The NATs of other routers in the region and network, also of those being created."""
        base = name.rpartition("/")[0]
        routers = dict(self.items(f"{base}/"))
        for record in self.context.registry.operations.pending(f"{ROUTERS}.insert"):
            if record.arguments["target"].startswith(f"{base}/"):
                routers[record.arguments["target"]] = record.arguments["row"]
        for other, row in routers.items():
            if other != name and row["network"] == network:
                yield from row.get("nats", ())

    def finish_patch(self, arguments: Arguments) -> None:
        """A whole router without NATs has none any more: gcloud's `nats delete` sends all that it
        has read, and an empty list, which is not part of a parsed request."""
        name, changes = arguments["target"], arguments["row"]
        changed = {**self.require(name), **changes}
        if "id" in changes and "nats" not in changes:
            changed.pop("nats", None)
        self.store.put_json(self.kind, name, self.complete(name, changed))


def _shown(nat: Row) -> Row:
    complete = {**_NAT_DEFAULTS, **nat}
    if "tcpTimeWaitTimeoutSec" in nat:
        complete["effectiveTcpTimeWaitTimeoutSec"] = nat["tcpTimeWaitTimeoutSec"]
    if "subnetworks" in nat:
        entries = nat["subnetworks"]
        complete["subnetworks"] = [{**entry, "name": LINK + entry["name"]} for entry in entries]
    return complete


def _refuse_overlap(nat: Row, other: Row, place: str) -> None:
    """No range of addresses has two NATs.

    Texts: google/osv.dev#5629, GoogleCloudPlatform/cloud-foundation-fabric#2383, and
    forseti-security/terraform-google-forseti#203. That of a new NAT of all subnetworks beside one
    of some is a guess.
    """
    option, existing = nat[_SOURCE], other[_SOURCE]
    if LISTED not in (option, existing) or existing == _ALL_RANGES:
        reason = f"Can not create new Nats since a Nat with option {existing} exists."
        raise bad_field(f"{place}.{_SOURCE}", option, reason)
    if option != LISTED:
        raise bad_field(f"{place}.{_SOURCE}", option, "Can not create it since other Nats exist.")
    used = {entry["name"]: entry["sourceIpRangesToNat"] for entry in other.get("subnetworks", ())}
    for index, entry in enumerate(nat.get("subnetworks", ())):
        _refuse_ranges(
            entry["sourceIpRangesToNat"],
            used.get(entry["name"], ()),
            f"{place}.subnetworks[{index}].sourceIpRangesToNat",
        )


def _refuse_ranges(requested: list[str], used: Sequence[str], place: str) -> None:
    """Of one subnetwork, that another NAT translates, too."""
    if used and "ALL_IP_RANGES" in (*requested, *used):
        reason = (
            f"The subnetwork is already configured with {used[0]} for Nat which conflicts "
            "with the specified IpRangeToNatOption options in this Nat."
        )
        raise bad_field(place, "", reason)
    if "PRIMARY_IP_RANGE" in used and "PRIMARY_IP_RANGE" in requested:
        reason = (
            "Can not specify PRIMARY_IP_RANGE for the Subnetwork since it is already configured "
            "for Nat with the option PRIMARY_IP_RANGE."
        )
        index = requested.index("PRIMARY_IP_RANGE")
        raise bad_field(f"{place}[{index}]", "PRIMARY_IP_RANGE", reason)
