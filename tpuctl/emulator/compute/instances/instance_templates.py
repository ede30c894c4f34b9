"""Instance templates, global and regional: the properties of a group's instances."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpuctl.emulator.compute.core.collection import Collection, Row, Rows
from tpuctl.emulator.compute.core.context import (
    INSTANCE_GROUP_MANAGERS,
    INSTANCE_TEMPLATES,
    INSTANCES,
    REGION_INSTANCE_TEMPLATES,
    ComputeContext,
)
from tpuctl.emulator.compute.core.errors import bad_field, failed_in_use, unknown_reference
from tpuctl.emulator.compute.core.fingerprint import fingerprint
from tpuctl.emulator.compute.core.messages import LINK
from tpuctl.emulator.compute.core.supported_fields import INSTANCE_TEMPLATE
from tpuctl.emulator.compute.instances.template_disks import template_disks
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.state.locations import region_of, regions
from tpuctl.emulator.state.operations import Arguments


def find_template(context: ComputeContext, name: str) -> Row | None:
    """A global or regional template by full name."""
    kind = INSTANCE_TEMPLATES if name.split("/")[2] == "global" else REGION_INSTANCE_TEMPLATES
    return context.find(kind, name)


def template_name(context: ComputeContext, zone: str, reference: str, field: str) -> str:
    """The full name of the template at this URL, for instances in `projects/P/zones/Z`."""
    match = re.search(
        r"(?:projects/([^/]+)/)?((?:global|regions/[^/]+)/instanceTemplates/[^/]+)$", reference
    )
    if match is None:
        raise bad_field(field, reference, "The URL is malformed.")
    _, project, _, zone_id = zone.split("/")
    full = f"projects/{context.project(match[1] or project)}/{match[2]}"
    if not match[2].startswith(("global/", f"regions/{region_of(zone_id)}/")):
        raise bad_field(field, reference, "The template must be in the region of the zone.")
    if find_template(context, full) is None:
        raise unknown_reference(field, reference, "instance template")
    return full


def instance_body(properties: Row, zone: str) -> Row:
    """A template's properties as the body of a request for an instance in this zone.

    Types of machines and disks are names in templates, and links in instances (their descriptions).
    """
    disks = []
    for disk in properties["disks"]:
        params = dict(disk.get("initializeParams", {}))
        if "diskType" in params:
            params["diskType"] = f"zones/{zone}/diskTypes/{params['diskType']}"
        disks.append({**disk, "initializeParams": params} if params else disk)
    machine_type = f"zones/{zone}/machineTypes/{properties['machineType']}"
    return {**properties, "machineType": machine_type, "disks": disks}


def _default_network(name: str, interface: Row) -> Row:
    """Shown if the template has neither a network nor a subnetwork (NetworkInterface.network)."""
    if interface.get("network") or interface.get("subnetwork"):
        return {}
    return {"network": f"{LINK}projects/{name.split('/')[1]}/global/networks/default"}


_SHARED_FIELDS = (
    *("canIpForward", "description", "labels", "metadata", "minCpuPlatform", "scheduling"),
    *("serviceAccounts", "shieldedInstanceConfig", "tags"),
)


def _properties(context: ComputeContext, instance: Row, configs: Rows) -> Row:
    """The properties of an existing instance, with its disks as `configs` say."""
    disks = template_disks(context, instance, configs)
    interfaces = [
        {
            "network": LINK + interface["network"],
            "accessConfigs": [
                {"type": "ONE_TO_ONE_NAT", "name": access.get("name", "External NAT")}
                for access in interface["accessConfigs"]
            ],
        }
        for interface in instance["networkInterfaces"]
    ]
    return {
        **{field: instance[field] for field in _SHARED_FIELDS if field in instance},
        "machineType": instance["machineType"].rpartition("/")[2],
        "disks": disks,
        "networkInterfaces": interfaces,
    }


def _without_input(disk: Row) -> Row:
    """An attachment as templates show it; AttachedDisk.forceAttach is input only."""
    return {field: value for field, value in disk.items() if field != "forceAttach"}


class InstanceTemplates(Collection):
    """Global templates, and the aggregated list of both kinds."""

    kind, message, plural = INSTANCE_TEMPLATES, "InstanceTemplate", "instanceTemplates"
    field = "instance_template"
    supported = INSTANCE_TEMPLATE

    def find(self, name: str) -> Row | None:
        return find_template(self.context, name)

    def all_names(self, project: str) -> Sequence[str]:
        regional = self.context.names(REGION_INSTANCE_TEMPLATES, f"projects/{project}/")
        return [*self.names(f"projects/{project}/"), *regional]

    def scopes(self) -> Sequence[str]:
        return ["global", *(f"regions/{region}" for region in regions())]

    def show(self, name: str, row: Row) -> Row:
        properties = dict(row["properties"])
        items = properties.get("metadata", {}).get("items", [])
        properties["metadata"] = {
            "kind": "compute#metadata",
            "fingerprint": fingerprint(items),
            "items": items,
        }
        if "tags" in properties:
            tags = properties["tags"].get("items", [])
            properties["tags"] = {"items": tags, "fingerprint": fingerprint(tags)}
        properties["disks"] = [
            {"kind": "compute#attachedDisk", "index": index, **_without_input(disk)}
            for index, disk in enumerate(properties["disks"])
        ]
        properties["networkInterfaces"] = [
            {
                **_default_network(name, interface),
                **interface,
                "name": f"nic{index}",
                "kind": "compute#networkInterface",
                "accessConfigs": [
                    {**access, "kind": "compute#accessConfig"}
                    for access in interface.get("accessConfigs", [])
                ],
            }
            for index, interface in enumerate(properties["networkInterfaces"])
        ]
        return {**super().show(name, row), "properties": properties}

    def complete(self, name: str, row: Row) -> Row:
        if "sourceInstance" in row:
            row = self._with_source(name, row)
        elif "sourceInstanceParams" in row:
            reason = "They need a source instance."  # a guess
            raise bad_field("resource.sourceInstanceParams", "", reason)
        properties = row.get("properties", {})
        place = "resource.properties"
        if not properties.get("machineType"):
            raise invalid(f"Required field '{place}.machineType' not specified", reason="required")
        if "/" in properties["machineType"]:
            # "the machine type to use, as a name": the field's description
            reason = "Machine type must be specified by name."
            raise bad_field(f"{place}.machineType", properties["machineType"], reason)
        if not properties.get("disks"):
            raise bad_field(f"{place}.disks", "", "No disks are specified.")
        if not properties.get("networkInterfaces"):
            reason = "At least one network interface is required."
            raise bad_field(f"{place}.networkInterfaces", "", reason)
        return row

    def _with_source(self, name: str, row: Row) -> Row:
        """The template with the properties of the existing instance that it names."""
        if "properties" in row:
            reason = "Only one of properties and sourceInstance can be specified."
            raise bad_field("resource.sourceInstance", row["sourceInstance"], reason)
        reference = re.search(
            r"(?:projects/([^/]+)/)?(zones/[^/]+/instances/[^/]+)$", row["sourceInstance"]
        )
        project = name.split("/")[1]
        source = reference and f"projects/{self.context.project(reference[1] or project)}"
        full = f"{source}/{reference[2]}" if reference else ""
        instance = self.context.find(INSTANCES, full)
        if instance is None:
            raise unknown_reference("resource.sourceInstance", row["sourceInstance"], "instance")
        return {
            **row,
            "sourceInstance": LINK + full,
            "properties": _properties(
                self.context, instance, row.get("sourceInstanceParams", {}).get("diskConfigs", [])
            ),
        }

    def operation_type(self, verb: str, arguments: Arguments) -> str:
        """As in GoogleCloudPlatform/k8s-config-connector, mockgcp."""
        return f"{INSTANCE_TEMPLATES}.{verb}"

    def check_deletion(self, name: str) -> None:
        for user, manager in self.context.items(
            INSTANCE_GROUP_MANAGERS, f"projects/{name.split('/')[1]}/"
        ):
            if manager["instanceTemplate"] == name:
                raise failed_in_use("instance_template", name, user)


class RegionInstanceTemplates(InstanceTemplates):
    """Templates of a region."""

    kind, scope = REGION_INSTANCE_TEMPLATES, "regions"
