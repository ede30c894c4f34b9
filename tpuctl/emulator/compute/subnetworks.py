"""Subnetworks, made by networks in auto mode or by hand, and the routes to them."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from functools import cache
from typing import Any

from tpuctl.emulator.compute.collection import Collection, Items, Row, Rows, fingerprint
from tpuctl.emulator.compute.context import NETWORKS, ComputeContext
from tpuctl.emulator.compute.errors import bad_field, condition_not_met, failed, not_found
from tpuctl.emulator.compute.lists import listed
from tpuctl.emulator.compute.messages import LINK, as_row, message_of
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.state.locations import auto_range, regions
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.state.resource_names import full_network
from tpuctl.emulator.wire.registry import Caller

__all__ = ["Routes", "Subnetworks"]


class Subnetworks(Collection):
    """Those of auto mode are in every region; only what was changed of them is stored."""

    kind, message, plural, field = "compute.subnetworks", "Subnetwork", "subnetworks", "subnetwork"
    scope = "regions"

    def __init__(self, context: ComputeContext) -> None:
        super().__init__(context)
        self.effects = {
            **self.effects,
            f"{self.kind}.setPrivateIpGoogleAccess": Effect(self.patched),
        }

    def find(self, name: str) -> Row | None:
        found = super().find(name)
        if found is not None:
            return found
        _, project, _, region, _, own = name.split("/")
        network = self.store.get_json(NETWORKS, f"projects/{project}/global/networks/{own}")
        if network is None or not network.get("autoCreateSubnetworks") or region not in regions():
            return None
        return _automatic(project, network, region)

    def names(self, prefix: str) -> Sequence[str]:
        parts = prefix.split("/")
        chosen = [parts[3]] if len(parts) > 3 and parts[3] else list(regions())
        base = f"projects/{parts[1]}"
        found = set(super().names(prefix))
        for network in self.store.list_json(NETWORKS, f"{base}/global/networks/"):
            if network.get("autoCreateSubnetworks"):
                own = network["name"]
                found.update(f"{base}/regions/{region}/subnetworks/{own}" for region in chosen)
        return sorted(found)

    def items(self, prefix: str) -> Items:
        return [(name, self.must(name)) for name in self.names(prefix)]

    def show(self, name: str, row: Row) -> Row:
        shown = {**super().show(name, row), "network": LINK + row["network"]}
        shown["fingerprint"] = fingerprint(row)
        shown.pop("auto", None)
        return shown

    async def set_private_ip_google_access(self, request: Any, caller: Caller) -> Any:
        name = self.name_of(request)
        self.must(name)
        asked = as_row(request.subnetworks_set_private_ip_google_access_request_resource)
        changes = {"privateIpGoogleAccess": asked.get("privateIpGoogleAccess", False)}
        verb = "setPrivateIpGoogleAccess"
        return self.begin(verb, name, caller, {"row": changes}, request.request_id)

    async def delete(self, request: Any, caller: Caller) -> Any:
        if self.must(self.name_of(request)).get("auto"):
            raise invalid(
                "Cannot delete auto subnetwork from an auto subnet mode network.", reason="invalid"
            )
        return await super().delete(request, caller)

    def complete(self, name: str, row: Row) -> Row:
        project, region = name.split("/")[1], name.split("/")[3]
        before = self.find(name)
        given = row.pop("fingerprint", "")
        if before is not None and given and given != fingerprint(before):
            raise condition_not_met("Supplied fingerprint does not match current one.")
        network = full_network(self.context.world.projects, project, row.get("network", ""))
        if self.store.get(NETWORKS, network) is None:
            raise not_found(network)
        try:
            wanted = ipaddress.ip_network(row.get("ipCidrRange", ""))
        except ValueError:
            why = "Must be a CIDR address range."
            raise bad_field("resource.ipCidrRange", row.get("ipCidrRange", ""), why) from None
        for other, known in self.items(f"projects/{project}/"):
            if known["network"] != network or other == name:
                continue
            if wanted.overlaps(ipaddress.ip_network(known["ipCidrRange"])):
                raise invalid(
                    f"Invalid IPCidrRange: {wanted} conflicts with existing subnetwork "
                    f"'{known['name']}' in region '{other.split('/')[3]}'.",
                    reason="invalid",
                )
        return {
            "privateIpGoogleAccess": False,
            "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY",
            "gatewayAddress": str(wanted.network_address + 1),
            **row,
            "network": network,
            "region": region,
        }

    def check_deletion(self, name: str) -> None:
        services = self.context.world.machine_services()
        users = [user for service in services for user in service.users_of_network(name)]
        if users:
            raise failed(
                "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
                f"The subnetwork resource '{name}' is already being used by '{users[0]}'",
            )

    def patched(self, arguments: Arguments) -> None:
        name = arguments["target"]
        row = {**self.must(name), **arguments["row"]}
        row["network"] = self.must(name)["network"]
        row.pop("fingerprint", None)
        self.store.put_json(self.kind, name, row)

    # For networks.

    def names_of(self, network: str) -> list[str]:
        """The full names of a network's subnetworks."""
        base, own = network.split("/global/", maxsplit=1)[0], network.rpartition("/")[2]
        found = set(self.custom_names(network))
        row = self.store.get_json(NETWORKS, network)
        if row is not None and row.get("autoCreateSubnetworks"):
            found |= {f"{base}/regions/{region}/subnetworks/{own}" for region in regions()}
        return sorted(found)

    def custom_names(self, network: str) -> list[str]:
        """Those made by hand, which have to go before the network."""
        rows = super().items(f"projects/{network.split('/')[1]}/")
        return [name for name, row in rows if row["network"] == network and not row.get("auto")]

    def forget(self, network: str) -> None:
        """What was changed of a network's automatic ones, when the network goes."""
        for name, row in super().items(f"projects/{network.split('/')[1]}/"):
            if row["network"] == network:
                self.store.delete(self.kind, name)


def _automatic(project: str, network: Row, region: str) -> Row:
    own, settled = _regional(region)
    return {
        **settled,
        "id": str((int(network["id"]) * 100000 + own) % 2**63),
        "creationTimestamp": network["creationTimestamp"],
        "name": network["name"],
        "network": f"projects/{project}/global/networks/{network['name']}",
    }


@cache
def _regional(region: str) -> tuple[int, Row]:
    """What the automatic ones of a region have in common, and a number of the region's own.

    Reckoned once: a project may have thousands of them.
    """
    own = int(hashlib.sha256(region.encode()).hexdigest()[:4], 16)
    range_ = ipaddress.ip_network(auto_range(region))
    return own, {
        "kind": "compute#subnetwork",
        "ipCidrRange": str(range_),
        "gatewayAddress": str(range_.network_address + 1),
        "privateIpGoogleAccess": False,
        "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY",
        "auto": True,
    }


class Routes:
    """The routes that Google makes by itself: one to each subnetwork, one to the internet."""

    def __init__(self, context: ComputeContext, subnetworks: Subnetworks) -> None:
        self._context = context
        self._subnetworks = subnetworks

    async def get(self, request: Any, caller: Caller) -> Any:
        project = self._context.project(request.project)
        for row in self._rows(project):
            if row["name"] == request.route:
                return message_of("Route", row)
        raise not_found(f"projects/{project}/global/routes/{request.route}")

    async def list(self, request: Any, caller: Caller) -> Any:
        project = self._context.project(request.project)
        base = f"projects/{project}/global/routes"
        rows = self._rows(project)
        return listed(request, "RouteList", "compute#routeList", rows, base)

    def _rows(self, project: str) -> Rows:
        rows = []
        for name, network in self._context.items(NETWORKS, f"projects/{project}/"):
            gateway = f"{LINK}projects/{project}/global/gateways/default-internet-gateway"
            rows.append(
                _route(project, network, name, "0.0.0.0/0")
                | {
                    "priority": 1000,
                    "description": "Default route to the Internet.",
                    "nextHopGateway": gateway,
                }
            )
        for name, subnetwork in self._subnetworks.items(f"projects/{project}/"):
            target = subnetwork["ipCidrRange"]
            rows.append(
                _route(project, subnetwork, name, target)
                | {
                    "priority": 0,
                    "description": f"Default local route to the subnetwork {target}.",
                    "nextHopNetwork": LINK + subnetwork["network"],
                }
            )
        return sorted(rows, key=lambda row: str(row["name"]))


def _route(project: str, of: Row, of_name: str, target: str) -> Row:
    digest = hashlib.sha256(f"{of_name} {target}".encode()).hexdigest()
    name = f"default-route-{digest[:16]}"
    return {
        "kind": "compute#route",
        "id": str(int(digest[:15], 16)),
        "creationTimestamp": of["creationTimestamp"],
        "name": name,
        "network": LINK + of.get("network", of_name),
        "destRange": target,
        "selfLink": f"{LINK}projects/{project}/global/routes/{name}",
    }
