"""What an instance is made of, from what a client asked for: checked, and with its defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tpuctl.emulator.compute.collection import Row, Rows
from tpuctl.emulator.compute.context import NETWORKS, ComputeContext
from tpuctl.emulator.compute.disks import Disks
from tpuctl.emulator.compute.errors import (
    already_exists,
    bad_field,
    condition_not_met,
    in_use,
    not_found,
)
from tpuctl.emulator.compute.machine_types import machine_type
from tpuctl.emulator.compute.project import checked_items
from tpuctl.emulator.compute.subnetworks import Subnetworks
from tpuctl.emulator.state.constraints import OrgPolicies
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.state.locations import region_of
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.state.resource_names import full_network, short

__all__ = ["Draft", "Sources", "accounts", "attached", "draft", "machine_type_of", "scheduling"]

_POLICY = "compute.vmExternalIpAccess"
_LOCATIONS = "gcp.resourceLocations"
_LABEL = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_KEPT = ("name", "description", "canIpForward", "deletionProtection", "minCpuPlatform")


@dataclass(frozen=True)
class Sources:
    """Where what instances are made of is found."""

    context: ComputeContext
    disks: Disks
    subnetworks: Subnetworks


@dataclass(frozen=True)
class Draft:
    """An instance to be, and the disks to be made with it, by their full names."""

    row: Row
    disks: dict[str, Row]


def draft(sources: Sources, name: str, asked: Row) -> Draft:
    """Refuses what Google refuses before it accepts."""
    project = sources.context.world.projects.require(name.split("/")[1])
    _check_location(sources, project, name)
    disks: dict[str, Row] = {}
    row: Row = {
        **{key: asked[key] for key in _KEPT if key in asked},
        "machineType": machine_type_of(name, asked),
        "tags": {"items": asked.get("tags", {}).get("items", [])},
        "metadata": {"items": checked_items(asked.get("metadata", {}))},
        "labels": _labels(asked.get("labels", {})),
        "scheduling": scheduling(asked.get("scheduling", {})),
        "serviceAccounts": accounts(project, asked.get("serviceAccounts", [])),
        "networkInterfaces": _interfaces(sources, project, name, asked),
        "shieldedInstanceConfig": {
            "enableSecureBoot": False,
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
            **asked.get("shieldedInstanceConfig", {}),
        },
        "status": "PROVISIONING",
    }
    wanted = asked.get("disks", [])
    if not wanted:
        raise bad_field("resource.disks", "", "No disks are specified.")
    row["disks"] = [_disk(sources, name, index, disk, disks) for index, disk in enumerate(wanted)]
    if [disk["boot"] for disk in row["disks"]].count(True) != 1 or not row["disks"][0]["boot"]:
        why = "Exactly one boot disk must be specified, and first."
        raise bad_field("resource.disks[0].boot", "", why)
    return Draft(row, disks)


def attached(sources: Sources, name: str, index: int, asked: Row) -> Row:
    """An existing disk as it is attached to an instance."""
    source = short(asked.get("source", ""))
    if not source.startswith("projects/"):
        source = f"{name.split('/instances/', maxsplit=1)[0]}/disks/{source.rpartition('/')[2]}"
    disk = sources.disks.find(source)
    if disk is None:
        raise not_found(source)
    mode = asked.get("mode", "READ_WRITE")
    for user in sources.disks.users_of(source):
        if mode == "READ_WRITE":
            raise in_use("disk", source, user)
    return _attachment(source, disk, index, asked)


def machine_type_of(name: str, asked: Row) -> str:
    """The full name of the type that an instance of this name is asked to have."""
    kind = asked.get("machineType", "").rpartition("/")[2]
    full = f"{name.split('/instances/', maxsplit=1)[0]}/machineTypes/{kind}"
    if machine_type(kind) is None:
        why = f"The referenced resource '{full}' cannot be found."
        raise bad_field("resource.machineType", asked.get("machineType", ""), why)
    return full


def _check_location(sources: Sources, project: Project, name: str) -> None:
    """In words that were seen in public, if never the whole answer."""
    zone, policies = name.split("/")[3], OrgPolicies(sources.context.world.store)
    if not policies.allows(f"projects/{project['id']}", _LOCATIONS, zone):
        raise condition_not_met(
            f"Location ZONE:{zone} violates constraint constraints/{_LOCATIONS} on the resource "
            f"{name}."
        )


def _labels(labels: dict[str, str]) -> dict[str, str]:
    for key, value in labels.items():
        if not _LABEL.fullmatch(key):
            raise bad_field("resource.labels", key, "Label key must match '[a-z][-_a-z0-9]{0,62}'.")
        if not re.fullmatch(r"[-_a-z0-9]{0,63}", value):
            why = "Label value must match '[-_a-z0-9]{0,63}'."
            raise bad_field("resource.labels", value, why)
    return labels


def scheduling(asked: Row) -> Row:
    """Complete: spot machines are ended by maintenance, and not started again."""
    is_spot = asked.get("provisioningModel") == "SPOT" or asked.get("preemptible", False)
    if is_spot and asked.get("automaticRestart"):
        raise invalid("Scheduling must have automaticRestart as false when preemptible is true.")
    return {
        "provisioningModel": "SPOT" if is_spot else "STANDARD",
        "onHostMaintenance": "TERMINATE" if is_spot else "MIGRATE",
        **asked,
        "preemptible": is_spot,
        "automaticRestart": not is_spot and asked.get("automaticRestart", True),
    }


def accounts(project: Project, asked: Rows) -> Rows:
    """The one account at most, the project's default one where `default` is asked for."""
    if len(asked) > 1:
        raise invalid("At most one service account may be specified.", reason="invalid")
    default = f"{project['number']}-compute@developer.gserviceaccount.com"
    return [
        {
            "email": default if one.get("email") in (None, "", "default") else one["email"],
            "scopes": one.get("scopes", []),
        }
        for one in asked
    ]


def _interfaces(sources: Sources, project: Project, name: str, asked: Row) -> Rows:
    wanted = asked.get("networkInterfaces", [])
    if len(wanted) != 1:
        why = "At least one network interface is required." if not wanted else "One at most here."
        raise bad_field("resource.networkInterfaces", "", why)
    region = region_of(name.split("/")[3])
    one = wanted[0]
    found = short(one.get("subnetwork", ""))
    if found:
        if not found.startswith("projects/"):
            own = found.rpartition("/")[2]
            found = f"projects/{project['id']}/regions/{region}/subnetworks/{own}"
        subnetwork = sources.subnetworks.find(found)
        if subnetwork is None or found.split("/")[3] != region:
            raise not_found(found)
        network = subnetwork["network"]
    else:
        network = full_network(
            sources.context.world.projects, project["id"], one.get("network", "")
        )
        if sources.context.world.store.get(NETWORKS, network) is None:
            raise not_found(network)
        own = network.rpartition("/")[2]
        found = f"{network.split('/global/')[0]}/regions/{region}/subnetworks/{own}"
        if sources.subnetworks.find(found) is None:
            why = "Subnetwork should be specified for custom subnetmode network"
            raise bad_field("resource.networkInterfaces[0]", "", why)
    interface = {
        "name": "nic0",
        "network": network,
        "subnetwork": found,
        "stackType": "IPV4_ONLY",
        "accessConfigs": [
            {
                "kind": "compute#accessConfig",
                "type": "ONE_TO_ONE_NAT",
                "name": access.get("name", "External NAT"),
                "networkTier": access.get("networkTier", "PREMIUM"),
            }
            for access in one.get("accessConfigs", [])
        ],
    }
    allows = OrgPolicies(sources.context.world.store).allows
    if interface["accessConfigs"] and not allows(f"projects/{project['id']}", _POLICY, name):
        # gardener/gardener-extension-provider-gcp#415 and others: error 412, conditionNotMet.
        raise condition_not_met(
            f"Constraint constraints/{_POLICY} violated for project {project['number']}. Add "
            f"instance {name} to the constraint to use external IP with it."
        )
    return [interface]


def _disk(sources: Sources, name: str, index: int, asked: Row, made: dict[str, Row]) -> Row:
    if asked.get("type") == "SCRATCH":
        return {"type": "SCRATCH", "index": index, "boot": False, "autoDelete": True}
    if "source" in asked:
        return attached(sources, name, index, asked)
    base, own = name.split("/instances/")
    params = asked.get("initializeParams", {})
    disk_name = params.get("diskName") or (own if asked.get("boot") else f"{own}-{index}")
    full = f"{base}/disks/{disk_name}"
    if full in made or sources.disks.find(full) is not None:
        raise already_exists(full)
    row: Row = {"name": disk_name, "type": params.get("diskType", "")}
    for field in ("sourceImage", "sourceSnapshot", "labels"):
        if field in params:
            row[field] = params[field]
    if size := params.get("diskSizeGb") or asked.get("diskSizeGb"):
        row["sizeGb"] = size
    made[full] = sources.disks.drafted(full, row)
    return _attachment(full, made[full], index, asked)


def _attachment(source: str, disk: Row, index: int, asked: Row) -> Row:
    row: dict[str, Any] = {
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "source": source,
        "index": index,
        "boot": asked.get("boot", False),
        "autoDelete": asked.get("autoDelete", False),
        "deviceName": asked.get("deviceName") or f"persistent-disk-{index}",
        "mode": asked.get("mode", "READ_WRITE"),
        "interface": asked.get("interface", "SCSI"),
        "diskSizeGb": disk["sizeGb"],
    }
    if disk.get("sourceImage"):
        row["architecture"] = "X86_64"
    return row
