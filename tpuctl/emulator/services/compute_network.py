"""Networks, their automatic subnetworks, and firewall rules."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from tpuctl import catalog
from tpuctl.emulator.operations import Arguments, Effect
from tpuctl.emulator.projects import now_text
from tpuctl.emulator.services.compute import (
    LINK,
    already_exists,
    bad_field,
    failed,
    message_of,
    not_found,
)
from tpuctl.emulator.services.compute_lists import listed
from tpuctl.emulator.world import Caller

if TYPE_CHECKING:
    from tpuctl.emulator.services.compute import ComputeService

__all__ = ["Firewalls", "Networks", "Subnetworks"]

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_NETWORKS = "compute.networks"
_FIREWALLS = "compute.firewalls"

Row = dict[str, Any]
Rows = list[Row]


class _Collection:
    """What global resources kept as JSON have in common."""

    kind = ""  # of the store, "compute.networks"
    message = ""  # "Network"
    plural = ""  # "networks"
    field = ""  # "network"

    def __init__(self, service: ComputeService) -> None:
        self.service = service
        self.store = service.world.store
        self.effects: Mapping[str, Effect] = {
            f"{self.kind}.insert": Effect(self._inserted),
            f"{self.kind}.delete": Effect(self._deleted),
            f"{self.kind}.patch": Effect(self._patched),
        }

    def name_of(self, request: Any) -> str:
        project = self.service.project(request.project)
        return f"projects/{project}/global/{self.plural}/{getattr(request, self.field)}"

    def must(self, name: str) -> Row:
        found = self.store.get_json(self.kind, name)
        if found is None:
            raise not_found(name)
        return found

    def show(self, name: str, row: Row) -> Row:
        """The row with what is not stored: links."""
        return {**row, "selfLink": LINK + name}

    async def get(self, request: Any, caller: Caller) -> Any:
        name = self.name_of(request)
        return message_of(self.message, self.show(name, self.must(name)))

    async def list(self, request: Any, caller: Caller) -> Any:
        scope = f"projects/{self.service.project(request.project)}/global/{self.plural}"
        rows = [
            self.show(f"{scope}/{row['name']}", row)
            for row in self.store.list_json(self.kind, f"{scope}/")
        ]
        return listed(request, f"{self.message}List", f"compute#{self.field}List", rows, scope)

    async def insert(self, request: Any, caller: Caller) -> Any:
        project = self.service.project(request.project)
        resource = getattr(request, f"{self.field}_resource")
        row = json_format.MessageToDict(resource)
        if not _NAME.fullmatch(row.get("name", "")):
            why = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"
            raise bad_field("resource.name", row.get("name", ""), why)
        name = f"projects/{project}/global/{self.plural}/{row['name']}"
        if self.store.get(self.kind, name) is not None and not request.request_id:
            raise already_exists(name)
        row = self.complete(project, row)
        if not request.request_id:
            self.service.refuse_pending(f"{self.kind}.insert", name)
        return self._begin("insert", name, caller, {"row": row}, request.request_id)

    async def delete(self, request: Any, caller: Caller) -> Any:
        name = self.name_of(request)
        if not request.request_id:
            self.must(name)
        return self._begin("delete", name, caller, {}, request.request_id)

    async def patch(self, request: Any, caller: Caller) -> Any:
        name = self.name_of(request)
        row = self.must(name)
        changes = json_format.MessageToDict(getattr(request, f"{self.field}_resource"))
        if changes.get("name", row["name"]) != row["name"]:
            raise bad_field("resource.name", changes["name"], "The name cannot be changed.")
        self.complete(name.split("/")[1], {**row, **changes})
        return self._begin("patch", name, caller, {"row": changes}, request.request_id)

    def _begin(
        self, verb: str, name: str, caller: Caller, arguments: Arguments, request_id: str
    ) -> Any:
        return self.service.begin(
            f"{self.kind}.{verb}", verb, name, self.kind, caller, arguments, request_id
        )

    def complete(self, project: str, row: Row) -> Row:
        """The row with its defaults; refuses what Google refuses before it accepts."""
        raise NotImplementedError

    def check_deletion(self, name: str) -> None:
        """Refuse while something needs the resource."""

    def _inserted(self, arguments: Arguments) -> None:
        name = arguments["target"]
        if self.store.get(self.kind, name) is not None:
            raise failed("RESOURCE_ALREADY_EXISTS", f"The resource '{name}' already exists", 409)
        row = {
            **arguments["row"],
            "kind": f"compute#{self.field}",
            "id": str(self.store.next("compute-id", 10**18)),
            "creationTimestamp": now_text(),
        }
        self.store.put_json(self.kind, name, row)

    def _deleted(self, arguments: Arguments) -> None:
        name = arguments["target"]
        self.check_deletion(name)
        if not self.store.delete(self.kind, name):
            raise failed("RESOURCE_NOT_FOUND", f"The resource '{name}' was not found", 404)

    def _patched(self, arguments: Arguments) -> None:
        name = arguments["target"]
        row = self.store.get_json(self.kind, name)
        if row is None:
            raise failed("RESOURCE_NOT_FOUND", f"The resource '{name}' was not found", 404)
        self.store.put_json(self.kind, name, {**row, **arguments["row"]})


class Networks(_Collection):
    """VPC networks. Legacy ones (with a range of their own) are not imitated."""

    kind, message, plural, field = _NETWORKS, "Network", "networks", "network"

    def complete(self, project: str, row: Row) -> Row:
        if "IPv4Range" in row:
            raise bad_field("resource.IPv4Range", row["IPv4Range"], "Legacy networks are gone.")
        return {
            "autoCreateSubnetworks": True,
            "routingConfig": {"routingMode": "REGIONAL"},
            **row,
        }

    def show(self, name: str, row: Row) -> Row:
        shown = super().show(name, row)
        if row.get("autoCreateSubnetworks"):
            shown["subnetworks"] = [LINK + subnetwork for subnetwork in _subnetworks(name)]
        return shown

    def check_deletion(self, name: str) -> None:
        project = name.split("/")[1]
        users = [
            f"projects/{project}/global/firewalls/{row['name']}"
            for row in self.store.list_json(_FIREWALLS, f"projects/{project}/global/firewalls/")
            if row["network"] == name
        ]
        if self.store.count("tpu.node"):
            from tpuctl.emulator.services.tpu_nodes import KIND, Node

            for node_name, body in self.store.items(KIND, f"projects/{project}/"):
                if Node.FromString(body).network_config.network == name:
                    users.append(node_name)
        if users:
            raise failed(
                "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
                f"The network resource '{name}' is already being used by '{users[0]}'",
            )


class Firewalls(_Collection):
    """Firewall rules. They are kept, not applied: every machine here is on loopback."""

    kind, message, plural, field = _FIREWALLS, "Firewall", "firewalls", "firewall"

    async def update(self, request: Any, caller: Caller) -> Any:
        return await self.patch(request, caller)

    def show(self, name: str, row: Row) -> Row:
        return {**super().show(name, row), "network": LINK + row["network"]}

    def complete(self, project: str, row: Row) -> Row:
        text = row.get("network") or "global/networks/default"
        found = re.search(r"projects/([^/]+)/global/networks/([^/]+)$", text)
        owner, name = (found[1], found[2]) if found else (project, text.rpartition("/")[2])
        network = f"projects/{owner}/global/networks/{name}"
        if self.store.get(_NETWORKS, network) is None:
            raise not_found(network)
        if not row.get("allowed") and not row.get("denied"):
            raise bad_field("resource.allowed", "", "Either allowed or denied must be given.")
        if row.get("allowed") and row.get("denied"):
            raise bad_field("resource.denied", "", "Only one of allowed and denied may be given.")
        for part in (*row.get("sourceRanges", ()), *row.get("destinationRanges", ())):
            try:
                ipaddress.ip_network(part)
            except ValueError:
                why = "Must be a CIDR address range."
                raise bad_field("resource.sourceRanges[0]", part, why) from None
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

    def _patched(self, arguments: Arguments) -> None:
        project = arguments["target"].split("/")[1]
        row = self.must(arguments["target"])
        changed = self.complete(project, {**row, **arguments["row"]})
        super()._patched({**arguments, "row": changed})


class Subnetworks:
    """The subnetworks that networks in auto mode have in every region."""

    effects: Mapping[str, Effect] = {}

    def __init__(self, service: ComputeService) -> None:
        self._service = service

    async def get(self, request: Any, caller: Caller) -> Any:
        for row in self._rows(request.project, request.region):
            if row["name"] == request.subnetwork:
                return message_of("Subnetwork", row)
        project = self._service.project(request.project)
        raise not_found(
            f"projects/{project}/regions/{request.region}/subnetworks/{request.subnetwork}"
        )

    async def list(self, request: Any, caller: Caller) -> Any:
        rows = self._rows(request.project, request.region)
        project = self._service.project(request.project)
        scope = f"projects/{project}/regions/{request.region}/subnetworks"
        return listed(request, "SubnetworkList", "compute#subnetworkList", rows, scope)

    def _rows(self, project_name: str, region: str) -> Rows:
        project = self._service.project(project_name)
        regions = _regions()
        if region not in regions:
            raise not_found(f"projects/{project}/regions/{region}")
        prefix = f"projects/{project}/global/networks/"
        rows = []
        for network in self._service.world.store.list_json(_NETWORKS, prefix):
            if not network.get("autoCreateSubnetworks"):
                continue
            name = f"projects/{project}/regions/{region}/subnetworks/{network['name']}"
            index = regions.index(region)
            rows.append(
                {
                    "kind": "compute#subnetwork",
                    "id": str((int(network["id"]) * 100 + index) % 2**63),
                    "creationTimestamp": network["creationTimestamp"],
                    "name": network["name"],
                    "network": f"{LINK}{prefix}{network['name']}",
                    "region": f"{LINK}projects/{project}/regions/{region}",
                    "ipCidrRange": f"10.{128 + index}.0.0/20",
                    "gatewayAddress": f"10.{128 + index}.0.1",
                    "privateIpGoogleAccess": False,
                    "purpose": "PRIVATE",
                    "stackType": "IPV4_ONLY",
                    "selfLink": LINK + name,
                }
            )
        return rows


def _regions() -> list[str]:
    return sorted({catalog.region_of(zone) for zone in catalog.zones()})


def _subnetworks(network: str) -> list[str]:
    project, name = network.split("/")[1], network.rpartition("/")[2]
    return [f"projects/{project}/regions/{region}/subnetworks/{name}" for region in _regions()]
