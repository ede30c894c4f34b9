"""Reserved addresses: regional, and global ones such as ranges for service networking."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence

from tpuctl.emulator.compute.core.collection import LabeledCollection, Row
from tpuctl.emulator.compute.core.context import (
    ADDRESSES,
    GLOBAL_ADDRESSES,
    NETWORKS,
    ComputeContext,
)
from tpuctl.emulator.compute.core.errors import bad_field, not_found
from tpuctl.emulator.compute.networks.subnetworks import Subnetworks
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.state.resource_names import full_network, relative_name

_EXTERNAL = ipaddress.IPv4Network("203.0.113.0/24")  # TEST-NET-3: not routable
_PRIVATE = ipaddress.IPv4Network("10.0.0.0/9")  # not used by auto mode networks


class Addresses(LabeledCollection):
    """Regional addresses. They are stored only: no machine is reachable at one."""

    kind, message, plural, field = ADDRESSES, "Address", "addresses", "address"
    scope, labels_field = "regions", "region_set_labels_request_resource"
    links = ("network", "subnetwork")

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
        return super().show(name, row)

    def find(self, name: str) -> Row | None:
        if "/global/" in name and self._global is not None:  # from the aggregated list
            return self._global.find(name)
        return super().find(name)

    def all_names(self, project: str) -> Sequence[str]:
        shared = [] if self._global is None else self._global.names(f"projects/{project}/")
        return [*shared, *super().all_names(project)]

    def scopes(self) -> Sequence[str]:
        return ["global", *super().scopes()]

    def complete(self, name: str, row: Row) -> Row:
        project = name.split("/")[1]
        complete = {"addressType": "EXTERNAL", "description": "", "status": "RESERVED", **row}
        complete.pop("labels", None)  # only setLabels sets them, says their description
        if complete["addressType"] == "INTERNAL":
            if "networkTier" in row:  # hashicorp's magic-modules#7524
                reason = "An address with type INTERNAL cannot have a network tier."
                raise bad_field("resource.networkTier", row["networkTier"], reason)
            if self.scope == "global" or "network" in row:
                complete["network"] = self._network(project, row)
            else:
                complete.setdefault("purpose", "GCE_ENDPOINT")
                complete["subnetwork"] = self._subnetwork(name, row.get("subnetwork", ""))
        elif "subnetwork" in row:
            complete["subnetwork"] = self._subnetwork(name, row["subnetwork"])
        complete.setdefault("networkTier", "PREMIUM")  # of internal ones, too
        length = int(row.get("prefixLength", 32))
        longest = 30 if row.get("purpose") == "VPC_PEERING" else 32
        if not 8 <= length <= longest:
            reason = f"Must be between 8 and {longest}."
            raise bad_field("resource.prefixLength", str(length), reason)
        if "address" in row:
            self._require_unused(project, complete, row["address"], length)
        else:
            complete["address"] = self._free_address(project, complete, length)
        return complete

    def _network(self, project: str, row: Row) -> str:
        network = full_network(self.context.registry.projects, project, row.get("network", ""))
        if self.store.get(NETWORKS, network) is None:
            raise not_found(network)
        return network

    def _subnetwork(self, name: str, reference: str) -> str:
        """The full name of the subnetwork, by default the default network's."""
        base = name.rpartition("/addresses/")[0]
        full = relative_name(reference or "default")
        if not full.startswith("projects/"):
            full = f"{base}/subnetworks/{full.rpartition('/')[2]}"
        if self._subnetworks.find(full) is not None:
            return full
        if reference:
            raise not_found(full)
        reason = "No default subnetwork was found for an address with type INTERNAL."
        raise bad_field("resource.subnetwork", "", reason)  # hashicorp/terraform#19507

    def _require_unused(self, project: str, row: Row, address: str, length: int) -> None:
        try:
            requested = ipaddress.IPv4Network(f"{address}/{length}")
        except ValueError:
            reason = "Must be an IPv4 address."
            raise bad_field("resource.address", address, reason) from None
        if any(requested.overlaps(other) for other in self._used_ranges(project, row)):
            raise invalid(
                f"Requested range {requested} conflicts with other resources: it is in use."
            )

    def _free_address(self, project: str, row: Row, length: int) -> str:
        used = list(self._used_ranges(project, row))
        pool = _EXTERNAL if row["addressType"] == "EXTERNAL" else _PRIVATE
        if "subnetwork" in row:
            pool = ipaddress.IPv4Network(
                self._subnetworks.require(row["subnetwork"])["ipCidrRange"]
            )
        for candidate in pool.subnets(new_prefix=length):
            if int(candidate.network_address) - int(pool.network_address) < 2:
                continue  # the network itself, and its gateway
            if not any(candidate.overlaps(other) for other in used):
                return str(candidate.network_address)
        raise invalid("There is no free address.")

    def _used_ranges(self, project: str, row: Row) -> Iterator[ipaddress.IPv4Network]:
        for kind in (ADDRESSES, GLOBAL_ADDRESSES):
            others = [other for _, other in self.context.items(kind, f"projects/{project}/")]
            for record in self.context.registry.operations.pending(f"{kind}.insert"):
                others.append(record.arguments["row"])
            for other in others:
                if all(other.get(field) == row.get(field) for field in ("network", "subnetwork")):
                    length = other.get("prefixLength", 32)
                    yield ipaddress.IPv4Network(f"{other['address']}/{length}")
        if "network" in row:
            for _, subnetwork in self._subnetworks.items(f"projects/{project}/"):
                if subnetwork["network"] == row["network"]:
                    yield ipaddress.IPv4Network(subnetwork["ipCidrRange"])


class GlobalAddresses(Addresses):
    """Global addresses; with purpose VPC_PEERING, the ranges for service networking."""

    kind, scope, labels_field = GLOBAL_ADDRESSES, "global", "global_set_labels_request_resource"
