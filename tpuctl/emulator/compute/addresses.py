"""Reserved addresses: regional, and global ones such as ranges for service networking."""

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

_EXTERNAL = ipaddress.IPv4Network("203.0.113.0/24")  # TEST-NET-3: not routable
_PRIVATE = ipaddress.IPv4Network("10.0.0.0/9")  # not used by auto mode networks


class Addresses(Collection):
    """Regional addresses. They are stored only: no machine is reachable at one."""

    kind, message, plural, field = ADDRESSES, "Address", "addresses", "address"
    scope = "regions"

    def __init__(
        self,
        context: ComputeContext,
        subnetworks: Subnetworks,
        global_addresses: GlobalAddresses | None = None,
    ) -> None:
        """`global_addresses` are included in the aggregated list; `GlobalAddresses` passes None."""
        super().__init__(context)
        self._subnetworks = subnetworks
        self._global = global_addresses

    def show(self, name: str, row: Row) -> Row:
        if "/global/" in name and self._global is not None:
            return self._global.show(name, row)
        resource = super().show(name, row)
        if "network" in row:
            resource["network"] = LINK + row["network"]
        resource["labelFingerprint"] = fingerprint(row.get("labels", {}))
        return resource

    async def set_labels(self, request: Any, caller: Caller) -> Any:
        prefix = "global" if self.scope == "global" else "region"
        labels_request = getattr(request, f"{prefix}_set_labels_request_resource")
        request_id = getattr(request, "request_id", "")
        return self.begin_labels(self.name_of(request), labels_request, caller, request_id)

    def find(self, name: str) -> Row | None:
        if "/global/" in name and self._global is not None:  # from the aggregated list
            return self._global.find(name)
        return super().find(name)

    def all_names(self, project: str) -> Sequence[str]:
        shared = [] if self._global is None else self._global.names(f"projects/{project}/")
        return [*shared, *super().all_names(project)]

    def complete(self, name: str, row: Row) -> Row:
        project = name.split("/")[1]
        complete = {"addressType": "EXTERNAL", "description": "", "status": "RESERVED", **row}
        complete.pop("labels", None)  # only setLabels sets them, says their description
        if complete["addressType"] == "INTERNAL" and (self.scope == "global" or "network" in row):
            network = full_network(self.context.registry.projects, project, row.get("network", ""))
            if self.store.get(NETWORKS, network) is None:
                raise not_found(network)
            complete["network"] = network
        complete.setdefault("networkTier", "PREMIUM")  # of internal ones, too
        length = int(row.get("prefixLength", 32))
        if row.get("purpose") == "VPC_PEERING" and not 8 <= length <= 30:
            raise bad_field("resource.prefixLength", str(length), "Must be between 8 and 30.")
        if "address" in row:
            self._require_unused(project, complete, row["address"], length)
        else:
            complete["address"] = self._free_address(project, complete, length)
        return complete

    def _require_unused(self, project: str, row: Row, address: str, length: int) -> None:
        try:
            requested = ipaddress.IPv4Network(f"{address}/{length}")
        except ValueError:
            reason = "Must be an IPv4 address."
            raise bad_field("resource.address", address, reason) from None
        if any(requested.overlaps(other) for other in self._used_ranges(project, row)):
            raise invalid(
                f"Requested range {requested} conflicts with other resources: it is in use.",
                reason="invalid",
            )

    def _free_address(self, project: str, row: Row, length: int) -> str:
        used = list(self._used_ranges(project, row))
        pool = _EXTERNAL if row["addressType"] == "EXTERNAL" else _PRIVATE
        for candidate in pool.subnets(new_prefix=length):
            if candidate.network_address == pool.network_address:
                continue  # the network address itself
            if not any(candidate.overlaps(other) for other in used):
                return str(candidate.network_address)
        raise invalid("There is no free address.", reason="invalid")

    def _used_ranges(self, project: str, row: Row) -> Iterator[ipaddress.IPv4Network]:
        for kind in (ADDRESSES, GLOBAL_ADDRESSES):
            others = [other for _, other in self.context.items(kind, f"projects/{project}/")]
            for record in self.context.registry.operations.pending(f"{kind}.insert"):
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
    """Global addresses; with purpose VPC_PEERING, the ranges for service networking."""

    kind, scope = GLOBAL_ADDRESSES, "global"
