"""Routes: those that Google creates, and those of one's own. No traffic follows the latter."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence

from tpuctl.emulator.compute.core.collection import Collection, Items, Row, Rows
from tpuctl.emulator.compute.core.context import INSTANCES, NETWORKS, ROUTES, ComputeContext
from tpuctl.emulator.compute.core.errors import bad_field, unknown_reference
from tpuctl.emulator.compute.core.supported_fields import ROUTE
from tpuctl.emulator.compute.networks.subnetworks import Subnetworks
from tpuctl.emulator.state.errors import invalid, unimplemented
from tpuctl.emulator.state.resource_names import full_network, relative_name

_NEXT_HOPS = ("nextHopGateway", "nextHopInstance", "nextHopIp")
_GATEWAY = "global/gateways/default-internet-gateway"


class Routes(Collection):
    """The routes of a project: one to the internet and one per subnetwork, and stored ones."""

    kind, message, plural, field = ROUTES, "Route", "routes", "route"
    links, supported = ("network", "nextHopGateway", "nextHopInstance", "nextHopNetwork"), ROUTE

    def __init__(self, context: ComputeContext, subnetworks: Subnetworks) -> None:
        super().__init__(context)
        self._subnetworks = subnetworks

    def find(self, name: str) -> Row | None:
        return dict(self.items(name)).get(name)

    def names(self, prefix: str) -> Sequence[str]:
        return [name for name, _ in self.items(prefix)]

    def show_all(self, names: Sequence[str]) -> Rows:
        rows = dict(self.items(names[0])) if names else {}
        return [self.show(name, rows[name]) for name in names]

    def items(self, prefix: str) -> Items:
        base = "/".join(prefix.split("/")[:2])
        generated = {f"{base}/global/routes/{row['name']}": row for row in self._generated(base)}
        return sorted({**generated, **dict(super().items(f"{base}/"))}.items())

    def complete(self, name: str, row: Row) -> Row:
        project = name.split("/")[1]
        network = full_network(self.context.registry.projects, project, row.get("network", ""))
        if not row.get("network"):
            raise invalid("Required field 'resource.network' not specified", reason="required")
        if self.store.get(NETWORKS, network) is None:
            raise unknown_reference("resource.network", row["network"], "network")
        _check_range(row.get("destRange", ""))
        priority = row.get("priority", 1000)
        if not 0 <= priority <= 65535:
            reason = "Must be from 0 to 65535."  # the field's description; the wording is a guess
            raise bad_field("resource.priority", str(priority), reason)
        hops = [field for field in _NEXT_HOPS if row.get(field)]
        if len(hops) != 1:  # a guess
            text = f"Exactly one of {', '.join(_NEXT_HOPS)} must be specified."
            raise invalid(f"Invalid value for field 'resource': {text}")
        hop = {hops[0]: self._next_hop(project, hops[0], row[hops[0]])}
        return {**row, **hop, "network": network, "priority": priority, "routeType": "STATIC"}

    def _next_hop(self, project: str, field: str, reference: str) -> str:
        """The next hop as it is stored: addresses as they are, and resources by full name."""
        place, name = f"resource.{field}", relative_name(reference)
        if field == "nextHopIp":
            try:
                return str(ipaddress.ip_address(reference))
            except ValueError:
                raise bad_field(place, reference, "Must be an IP address.") from None
        full = name if name.startswith("projects/") else f"projects/{project}/{name}"
        if field == "nextHopGateway":
            if not full.endswith(f"/{_GATEWAY}"):
                raise unknown_reference(place, reference, "gateway")
        elif self.store.get(INSTANCES, full) is None:
            raise unknown_reference(place, reference, "instance")
        return full

    def check_deletable(self, name: str) -> None:
        """Those of subnetworks cannot be deleted (docs.cloud.google.com/vpc/docs/routes)."""
        row = self.require(name)
        if "nextHopNetwork" in row:
            text = f"The route '{name}' of a subnetwork cannot be deleted."  # a guess
            raise invalid(f"Invalid resource usage: '{text}'.", reason="invalidResourceUsage")
        if self.store.get(self.kind, name) is None:
            raise unimplemented("Deleting a network's default route to the internet")

    def _generated(self, base: str) -> Rows:
        rows = []
        for name, network in self.context.items(NETWORKS, f"{base}/"):
            rows.append(
                _route(network, name, "0.0.0.0/0")
                | {
                    "priority": 1000,
                    "description": "Default route to the Internet.",
                    "nextHopGateway": f"{base}/{_GATEWAY}",
                }
            )
        for name, subnetwork in self._subnetworks.items(f"{base}/"):
            dest_range = subnetwork["ipCidrRange"]
            rows.append(
                _route(subnetwork, name, dest_range)
                | {
                    "priority": 0,
                    "description": f"Default local route to the subnetwork {dest_range}.",
                    "nextHopNetwork": subnetwork["network"],
                }
            )
        return sorted(rows, key=lambda row: str(row["name"]))


def _route(resource: Row, resource_name: str, dest_range: str) -> Row:
    digest = hashlib.sha256(f"{resource_name} {dest_range}".encode()).hexdigest()
    return {
        "kind": "compute#route",
        "id": str(int(digest[:15], 16)),
        "creationTimestamp": resource["creationTimestamp"],
        "name": f"default-route-{digest[:16]}",
        "network": resource.get("network", resource_name),
        "destRange": dest_range,
    }


def _check_range(text: str) -> None:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        reason = "Must be a CIDR address range."
        raise bad_field("resource.destRange", text, reason) from None
