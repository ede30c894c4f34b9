"""Reserved addresses: of regions, and global ones such as ranges for service networking."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Any

from tpuctl.emulator.compute.collection import Collection, Row, fingerprint
from tpuctl.emulator.compute.context import ADDRESSES, GLOBAL_ADDRESSES, NETWORKS, ComputeContext
from tpuctl.emulator.compute.errors import bad_field, not_found
from tpuctl.emulator.compute.messages import LINK
from tpuctl.emulator.compute.subnetworks import Subnetworks
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.state.resource_names import full_network
from tpuctl.emulator.wire.registry import Caller

__all__ = ["Addresses", "GlobalAddresses"]

_EXTERNAL = ipaddress.IPv4Network("203.0.113.0/24")  # kept for documentation: leads nowhere
_PRIVATE = ipaddress.IPv4Network("10.0.0.0/9")  # outside of what auto networks use


class Addresses(Collection):
    """Addresses of a region. They are kept; no machine here is reached by one."""

    kind, message, plural, field = ADDRESSES, "Address", "addresses", "address"
    scope = "regions"

    def __init__(
        self,
        context: ComputeContext,
        subnetworks: Subnetworks,
        global_addresses: GlobalAddresses | None = None,
    ) -> None:
        """`global_addresses` stand in the list over all scopes too; they themselves have none."""
        super().__init__(context)
        self._subnetworks = subnetworks
        self._global = global_addresses

    def show(self, name: str, row: Row) -> Row:
        if "/global/" in name and self._global is not None:
            return self._global.show(name, row)
        shown = super().show(name, row)
        if "network" in row:
            shown["network"] = LINK + row["network"]
        shown["labelFingerprint"] = fingerprint(row.get("labels", {}))
        return shown

    async def set_labels(self, request: Any, caller: Caller) -> Any:
        prefix = "global" if self.scope == "global" else "region"
        wanted = getattr(request, f"{prefix}_set_labels_request_resource")
        request_id = getattr(request, "request_id", "")
        return self.begin_labels(self.name_of(request), wanted, caller, request_id)

    def find(self, name: str) -> Row | None:
        if "/global/" in name and self._global is not None:  # of the list over all scopes
            return self._global.find(name)
        return super().find(name)

    def everywhere(self, project: str) -> Sequence[str]:
        shared = [] if self._global is None else self._global.names(f"projects/{project}/")
        return [*shared, *super().everywhere(project)]

    def complete(self, name: str, row: Row) -> Row:
        project = name.split("/")[1]
        complete = {"addressType": "EXTERNAL", "status": "RESERVED", **row}
        if complete["addressType"] == "INTERNAL" and (self.scope == "global" or "network" in row):
            network = full_network(self.context.world.projects, project, row.get("network", ""))
            if self.store.get(NETWORKS, network) is None:
                raise not_found(network)
            complete["network"] = network
        if complete["addressType"] == "EXTERNAL":
            complete.setdefault("networkTier", "PREMIUM")
        length = int(row.get("prefixLength", 32))
        if row.get("purpose") == "VPC_PEERING" and not 8 <= length <= 30:
            raise bad_field("resource.prefixLength", str(length), "Must be between 8 and 30.")
        if "address" in row:
            self._refuse_taken(project, complete, row["address"], length)
        else:
            complete["address"] = self._free(project, complete, length)
        return complete

    def _refuse_taken(self, project: str, row: Row, address: str, length: int) -> None:
        try:
            wanted = ipaddress.IPv4Network(f"{address}/{length}")
        except ValueError:
            why = "Must be an IPv4 address."
            raise bad_field("resource.address", address, why) from None
        if any(wanted.overlaps(taken) for taken in self._taken(project, row)):
            raise invalid(
                f"Requested range {wanted} conflicts with other resources: it is in use.",
                reason="invalid",
            )

    def _free(self, project: str, row: Row, length: int) -> str:
        taken = list(self._taken(project, row))
        whole = _EXTERNAL if row["addressType"] == "EXTERNAL" else _PRIVATE
        for candidate in whole.subnets(new_prefix=length):
            if candidate.network_address == whole.network_address:
                continue  # nobody's own address
            if not any(candidate.overlaps(other) for other in taken):
                return str(candidate.network_address)
        raise invalid("There is no free address.", reason="invalid")

    def _taken(self, project: str, row: Row) -> Iterator[ipaddress.IPv4Network]:
        for kind in (ADDRESSES, GLOBAL_ADDRESSES):
            others = [other for _, other in self.context.items(kind, f"projects/{project}/")]
            for record in self.context.world.operations.pending(f"{kind}.insert"):
                others.append(record.arguments["row"])
            for other in others:
                if other.get("network") == row.get("network"):
                    length = other.get("prefixLength", 32)
                    yield ipaddress.IPv4Network(f"{other['address']}/{length}")
        if "network" in row:
            for _, subnetwork in self._subnetworks.items(f"projects/{project}/"):
                if subnetwork["network"] == row["network"]:
                    yield ipaddress.IPv4Network(subnetwork["ipCidrRange"])


class GlobalAddresses(Addresses):
    """Global addresses; with purpose VPC_PEERING, the ranges that service networking may use."""

    kind, scope = GLOBAL_ADDRESSES, "global"
