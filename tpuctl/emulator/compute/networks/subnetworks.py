"""Subnetworks, automatic and custom."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from functools import cache
from typing import Any

from tpuctl.emulator.compute.core.collection import Collection, Items, Row
from tpuctl.emulator.compute.core.context import NETWORKS
from tpuctl.emulator.compute.core.errors import (
    bad_field,
    condition_not_met,
    failed_in_use,
    not_found,
)
from tpuctl.emulator.compute.core.fingerprint import fingerprint
from tpuctl.emulator.compute.core.lists import listed_names
from tpuctl.emulator.compute.core.messages import LINK, as_row, message_of
from tpuctl.emulator.iam.policies import Policies, concurrent_change
from tpuctl.emulator.state.cloud_nat import ROUTERS
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.state.locations import auto_range, regions
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.state.resource_names import full_network
from tpuctl.emulator.wire.registry import Caller

_AUTO_RANGES = ipaddress.ip_network("10.128.0.0/9")


class Subnetworks(Collection):
    """Auto mode subnetworks exist in every region; only changed ones are stored."""

    kind, message, plural, field = "compute.subnetworks", "Subnetwork", "subnetworks", "subnetwork"
    scope, links = "regions", ("network",)

    def verbs(self) -> dict[str, Effect]:
        return {**super().verbs(), "setPrivateIpGoogleAccess": Effect(self.finish_patch)}

    def find(self, name: str) -> Row | None:
        row = super().find(name)
        if row is not None:
            return row
        parts = name.split("/")
        if len(parts) != 6:
            return None  # a reference that is malformed
        _, project, _, region, _, subnetwork_id = parts
        network = self.store.get_json(
            NETWORKS, f"projects/{project}/global/networks/{subnetwork_id}"
        )
        if network is None or not network.get("autoCreateSubnetworks") or region not in regions():
            return None
        return _auto_subnetwork(project, network, region)

    def names(self, prefix: str) -> Sequence[str]:
        parts = prefix.split("/")
        region_names = [parts[3]] if len(parts) > 3 and parts[3] else list(regions())
        base = f"projects/{parts[1]}"
        names = set(super().names(prefix))
        for network in self.store.list_json(NETWORKS, f"{base}/global/networks/"):
            if network.get("autoCreateSubnetworks"):
                network_id = network["name"]
                names.update(
                    f"{base}/regions/{region}/subnetworks/{network_id}" for region in region_names
                )
        return sorted(names)

    def items(self, prefix: str) -> Items:
        return [(name, self.require(name)) for name in self.names(prefix)]

    def show(self, name: str, row: Row) -> Row:
        resource = {
            "privateIpv6GoogleAccess": "DISABLE_GOOGLE_ACCESS",
            "allowSubnetCidrRoutesOverlap": False,
            **super().show(name, row),
            "fingerprint": fingerprint(row),
            "state": "READY",
        }
        if "logConfig" in row:
            resource["enableFlowLogs"] = row["logConfig"].get("enable", False)
        resource.pop("auto", None)
        return resource

    async def set_private_ip_google_access(self, request: Any, caller: Caller) -> Any:
        name = self.name_of(request)
        self.require(name)
        body = as_row(request.subnetworks_set_private_ip_google_access_request_resource)
        changes = {"privateIpGoogleAccess": body.get("privateIpGoogleAccess", False)}
        verb = "setPrivateIpGoogleAccess"
        return self.begin(verb, name, caller, {"row": changes}, request.request_id)

    async def list_usable(self, request: Any, caller: Caller) -> Any:
        """Those of the project that the caller may use."""
        project = self.context.project(request.project)
        allows = self.context.registry.authority.allows
        names = [
            name
            for name in self.names(f"projects/{project}/")
            if allows(caller.email, "compute.subnetworks.use", name)
        ]
        scope = f"projects/{project}/aggregated/subnetworks"
        kind = "compute#usableSubnetworksAggregatedList"
        return listed_names(
            *(request, "UsableSubnetworksAggregatedList", kind, names, scope, self._show_usable)
        )

    def _show_usable(self, names: Sequence[str]) -> list[Row]:
        return [
            {
                "subnetwork": LINK + name,
                **{
                    field: value
                    for field, value in self.show(name, self.require(name)).items()
                    if field in ("network", "ipCidrRange", "purpose", "stackType")
                },
            }
            for name in names
        ]

    # Policies, which grant the use of one subnetwork.

    async def get_iam_policy(self, request: Any, caller: Caller) -> Any:
        return message_of("Policy", self._policies.get(self._with_policy(request)))

    async def set_iam_policy(self, request: Any, caller: Caller) -> Any:
        body = as_row(request.region_set_policy_request_resource)
        policy = body.get("policy") or {key: body[key] for key in body if key != "policy"}
        name = self._with_policy(request)
        return message_of("Policy", self._policies.set(name, policy, concurrent_change()))

    async def test_iam_permissions(self, request: Any, caller: Caller) -> Any:
        requested = request.test_permissions_request_resource.permissions
        authority = self.context.registry.authority
        granted = authority.granted_permissions(caller, self._with_policy(request), requested)
        return message_of("TestPermissionsResponse", {"permissions": granted})

    def _with_policy(self, request: Any) -> str:
        name = self.name_of(request)
        self.require(name)
        return name

    @property
    def _policies(self) -> Policies:
        return Policies(self.store)

    async def patch(self, request: Any, caller: Caller) -> Any:
        """A fingerprint is required (hashicorp/terraform-provider-google#1469)."""
        if not request.subnetwork_resource.fingerprint:
            raise invalid("Required field 'resource.fingerprint' not specified", reason="required")
        return await super().patch(request, caller)

    async def delete(self, request: Any, caller: Caller) -> Any:
        if self.require(self.name_of(request)).get("auto"):
            # tektoncd/plumbing#28
            text = "Cannot delete auto subnetwork from an auto subnet mode network."
            raise invalid(f"Invalid resource usage: '{text}'.", reason="invalidResourceUsage")
        return await super().delete(request, caller)

    def complete(self, name: str, row: Row) -> Row:
        project, region = name.split("/")[1], name.split("/")[3]
        before = self.find(name)
        requested_fingerprint = row.pop("fingerprint", "")
        if (
            before is not None
            and requested_fingerprint
            and requested_fingerprint != fingerprint(before)
        ):
            raise condition_not_met("Supplied fingerprint does not match current one.")
        network = full_network(self.context.registry.projects, project, row.get("network", ""))
        if self.store.get(NETWORKS, network) is None:
            raise not_found(network)
        try:
            cidr = ipaddress.ip_network(row.get("ipCidrRange", ""))
        except ValueError:
            reason = "Must be a CIDR address range."
            raise bad_field("resource.ipCidrRange", row.get("ipCidrRange", ""), reason) from None
        is_auto = (self.store.get_json(NETWORKS, network) or {}).get("autoCreateSubnetworks")
        if is_auto and before is None and cidr.overlaps(_AUTO_RANGES):
            # cloudfoundry/bosh-google-cpi-release#238
            reason = (
                "Extended subnetworks in auto subnet mode networks cannot overlap with "
                f"{_AUTO_RANGES}."
            )
            raise bad_field("resource.ipCidrRange", str(cidr), reason)
        for other, subnetwork in self.items(f"projects/{project}/"):
            if subnetwork["network"] != network or other == name:
                continue
            if cidr.overlaps(ipaddress.ip_network(subnetwork["ipCidrRange"])):
                reason = (
                    f"Invalid IPCidrRange: {cidr} conflicts with existing subnetwork "
                    f"'{subnetwork['name']}' in region '{other.split('/')[3]}'."
                )
                raise bad_field("resource.ipCidrRange", str(cidr), reason)
        return {
            "privateIpGoogleAccess": False,
            "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY",
            "gatewayAddress": str(cidr.network_address + 1),
            **row,
            "network": network,
            "region": region,
        }

    def check_deletion(self, name: str) -> None:
        for service in self.context.registry.machine_services():
            for user in service.users_of_network(name):
                raise failed_in_use("subnetwork", name, user)
        for router, row in self.context.items(ROUTERS, f"{name.rpartition('/subnetworks/')[0]}/"):
            for nat in row.get("nats", ()):
                if name in [entry["name"] for entry in nat.get("subnetworks", ())]:
                    raise failed_in_use("subnetwork", name, router)

    def finish_patch(self, arguments: Arguments) -> None:
        name = arguments["target"]
        row = {**self.require(name), **arguments["row"]}
        row["network"] = self.require(name)["network"]
        row.pop("fingerprint", None)
        self.store.put_json(self.kind, name, row)

    # For networks.

    def names_of(self, network: str) -> list[str]:
        """The full names of a network's subnetworks."""
        base, network_id = network.split("/global/", maxsplit=1)[0], network.rpartition("/")[2]
        names = set(self.custom_names(network))
        row = self.store.get_json(NETWORKS, network)
        if row is not None and row.get("autoCreateSubnetworks"):
            names |= {f"{base}/regions/{region}/subnetworks/{network_id}" for region in regions()}
        return sorted(names)

    def custom_names(self, network: str) -> list[str]:
        """Custom subnetworks, which must be deleted before the network."""
        rows = super().items(f"projects/{network.split('/')[1]}/")
        return [name for name, row in rows if row["network"] == network and not row.get("auto")]

    def forget(self, network: str) -> None:
        """Drop the stored changes of automatic subnetworks of a deleted network."""
        for name, row in super().items(f"projects/{network.split('/')[1]}/"):
            if row["network"] == network:
                self.store.delete(self.kind, name)


def _auto_subnetwork(project: str, network: Row, region: str) -> Row:
    number, common = _auto_defaults(region)
    return {
        **common,
        "id": str((int(network["id"]) * 100000 + number) % 2**63),
        "creationTimestamp": network["creationTimestamp"],
        "name": network["name"],
        "network": f"projects/{project}/global/networks/{network['name']}",
    }


@cache
def _auto_defaults(region: str) -> tuple[int, Row]:
    """The common fields of a region's automatic subnetworks, and a number unique to the region.

    Cached: a project may have thousands of them.
    """
    number = int(hashlib.sha256(region.encode()).hexdigest()[:4], 16)
    range_ = ipaddress.ip_network(auto_range(region))
    return number, {
        "kind": "compute#subnetwork",
        "ipCidrRange": str(range_),
        "gatewayAddress": str(range_.network_address + 1),
        "privateIpGoogleAccess": False,
        "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY",
        "auto": True,
    }
