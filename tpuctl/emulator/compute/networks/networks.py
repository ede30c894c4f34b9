"""Networks and firewall rules."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from tpuctl.emulator.compute.core.collection import Collection, Row
from tpuctl.emulator.compute.core.context import FIREWALLS, NETWORKS, ROUTES, ComputeContext
from tpuctl.emulator.compute.core.errors import bad_field, failed_in_use, not_found
from tpuctl.emulator.compute.core.messages import LINK, message_of
from tpuctl.emulator.compute.networks.subnetworks import Subnetworks
from tpuctl.emulator.state.cloud_nat import ROUTERS
from tpuctl.emulator.state.errors import unsupported_field
from tpuctl.emulator.state.operations import Arguments
from tpuctl.emulator.state.resource_names import full_network, relative_name
from tpuctl.emulator.wire.registry import Caller

_ENFORCEMENT_ORDER = "AFTER_CLASSIC_FIREWALL"
_WITH_PORTS = ("tcp", "udp", "sctp", "6", "17", "132")


class Networks(Collection):
    """VPC networks. Legacy networks are not emulated."""

    kind, message, plural, field = NETWORKS, "Network", "networks", "network"

    def __init__(
        self, context: ComputeContext, subnetworks: Subnetworks, firewalls: Firewalls
    ) -> None:
        super().__init__(context)
        self._subnetworks = subnetworks
        self._firewalls = firewalls

    def complete(self, name: str, row: Row) -> Row:
        if "IPv4Range" in row:
            raise bad_field(
                "resource.IPv4Range", row["IPv4Range"], "Legacy networks are no longer supported."
            )
        order = "networkFirewallPolicyEnforcementOrder"  # policies are not emulated
        if row.get(order, _ENFORCEMENT_ORDER) != _ENFORCEMENT_ORDER:
            raise unsupported_field(f"resource.{order}")
        return {
            "autoCreateSubnetworks": True,
            "routingConfig": {"routingMode": "REGIONAL"},
            **row,
        }

    def operation_type(self, verb: str, arguments: Arguments) -> str:
        if verb != "patch":
            return verb
        is_routing = arguments["row"].keys() == {"routingConfig"}
        return "compute.networks.patch" if is_routing else "updateNetwork"

    def show(self, name: str, row: Row) -> Row:
        resource = super().show(name, row)
        resource["selfLinkWithId"] = f"{LINK}{name.rpartition('/')[0]}/{row['id']}"
        resource["networkFirewallPolicyEnforcementOrder"] = _ENFORCEMENT_ORDER
        resource["routingConfig"] = {"bgpBestPathSelectionMode": "LEGACY", **row["routingConfig"]}
        if "networkProfile" in row:
            resource["networkProfile"] = LINK + relative_name(row["networkProfile"])
        if row.get("enableUlaInternalIpv6"):
            resource.setdefault("internalIpv6Range", _unique_local_range(row["id"]))
        subnetworks = self._subnetworks.names_of(name)
        if subnetworks:
            resource["subnetworks"] = [LINK + subnetwork for subnetwork in subnetworks]
        return resource

    async def get_effective_firewalls(self, request: Any, caller: Caller) -> Any:
        """The network's firewall rules; firewall policies are not emulated."""
        name = self.name_of(request)
        self.require(name)
        rules = self._firewalls
        rows = [
            rules.show(rule, row)
            for rule, row in rules.items(
                f"{self.collection_name(request).rpartition('/')[0]}/firewalls/"
            )
            if row["network"] == name
        ]
        return message_of("NetworksGetEffectiveFirewallsResponse", {"firewalls": rows})

    async def list_peering_routes(self, request: Any, caller: Caller) -> Any:
        """Always an error: no network here has a peering."""
        name = self.name_of(request)
        self.require(name)
        raise not_found(f"{name}/networkPeerings/{request.peering_name}")

    def finish_patch(self, arguments: Arguments) -> None:
        row = self.require(arguments["target"])
        changes = dict(arguments["row"])
        if "routingConfig" in changes:
            changes["routingConfig"] = {**row["routingConfig"], **changes["routingConfig"]}
        super().finish_patch({**arguments, "row": changes})

    def check_deletion(self, name: str) -> None:
        for user in self._users(name):
            raise failed_in_use("network", name, user)

    def finish_delete(self, arguments: Arguments) -> None:
        super().finish_delete(arguments)
        self._subnetworks.forget(arguments["target"])

    def _users(self, name: str) -> list[str]:
        project = name.split("/")[1]
        users = [
            firewall
            for firewall, row in self._firewalls.items(f"projects/{project}/")
            if row["network"] == name
        ]
        for kind in (ROUTES, ROUTERS):
            stored = self.context.items(kind, f"projects/{project}/")
            users += [user for user, row in stored if row["network"] == name]
        users += self._subnetworks.custom_names(name)
        for service in self.context.registry.machine_services():
            users += service.users_of_network(name)
        return users


def _unique_local_range(network_id: str) -> str:
    """The /48 that Google gives a network for internal IPv6 addresses, all in fd20::/20."""
    digits = f"{int(network_id) % 2**28:07x}"
    return f"fd20:{digits[:3]}:{digits[3:]}:0:0:0:0:0/48"


class Firewalls(Collection):
    """Firewall rules; `wire/network_policy.py` applies them."""

    kind, message, plural, field = FIREWALLS, "Firewall", "firewalls", "firewall"
    links = ("network",)

    async def update(self, request: Any, caller: Caller) -> Any:
        return await self.patch(request, caller)

    def complete(self, name: str, row: Row) -> Row:
        project = name.split("/")[1]
        network = full_network(self.context.registry.projects, project, row.get("network", ""))
        if self.store.get(NETWORKS, network) is None:
            raise not_found(network)
        if not row.get("allowed") and not row.get("denied"):
            raise bad_field("resource.allowed", "", "Either allowed or denied must be given.")
        if row.get("allowed") and row.get("denied"):
            raise bad_field("resource.denied", "", "Only one of allowed and denied may be given.")
        for index, rule in enumerate(row.get("allowed") or row["denied"]):
            field = f"resource.{'allowed' if row.get('allowed') else 'denied'}[{index}]"
            _check_ports(f"{field}.ports", rule)
        for part in (*row.get("sourceRanges", ()), *row.get("destinationRanges", ())):
            try:
                ipaddress.ip_network(part)
            except ValueError:
                reason = "Must be a CIDR address range."
                raise bad_field("resource.sourceRanges[0]", part, reason) from None
        complete = {
            "priority": 1000,
            "direction": "INGRESS",
            "disabled": False,
            "logConfig": {"enable": False},
            **row,
            "network": network,
        }
        has_source = any(row.get(f"source{kind}") for kind in ("Ranges", "Tags", "ServiceAccounts"))
        if complete["direction"] == "INGRESS" and not has_source:
            complete["sourceRanges"] = ["0.0.0.0/0"]
        return complete

    def finish_patch(self, arguments: Arguments) -> None:
        name = arguments["target"]
        changed = self.complete(name, {**self.require(name), **arguments["row"]})
        super().finish_patch({**arguments, "row": changed})


def _check_ports(field: str, rule: Row) -> None:
    """Ports must be numbers or ranges, and the protocol must have ports.

    The rules are from the descriptions of Firewall.allowed[]; wording of wrong ports:
    GoogleCloudPlatform/google-cloud-powershell#537, of others: guess.
    """
    ports = rule.get("ports", [])
    if ports and rule.get("IPProtocol", "").lower() not in _WITH_PORTS:
        raise bad_field(field, ports[0], "Ports may only be specified on TCP, UDP and SCTP.")
    for index, port in enumerate(ports):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", port)
        if match is None or not int(match[1]) <= int(match[2] or match[1]) <= 65535:
            reason = "Invalid port range specification."
            raise bad_field(f"{field}[{index}]", port, reason)
