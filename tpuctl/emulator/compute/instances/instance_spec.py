"""Builds an instance row from a request: validated and with defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tpuctl.emulator.compute.core.collection import Row, Rows
from tpuctl.emulator.compute.core.context import INSTANCES, NETWORKS, ComputeContext
from tpuctl.emulator.compute.core.errors import (
    already_exists,
    bad_field,
    condition_not_met,
    in_use,
    unknown_reference,
)
from tpuctl.emulator.compute.core.supported_fields import INSTANCE, check_supported
from tpuctl.emulator.compute.disks.disks import Disks
from tpuctl.emulator.compute.disks.encryption_keys import shown_key
from tpuctl.emulator.compute.disks.references import full_disk, is_regional
from tpuctl.emulator.compute.disks.replication import is_replicated_to
from tpuctl.emulator.compute.instances.project import checked_items
from tpuctl.emulator.compute.networks.subnetworks import Subnetworks
from tpuctl.emulator.compute.offerings.machine_types import MachineType, machine_type
from tpuctl.emulator.compute.offerings.reservations import reservation_of
from tpuctl.emulator.compute.offerings.scheduling import scheduling, wait_seconds
from tpuctl.emulator.state.constraints import OrgPolicies
from tpuctl.emulator.state.errors import ApiError, invalid, unsupported_field
from tpuctl.emulator.state.locations import region_of
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.state.resource_names import full_network, relative_name
from tpuctl.emulator.state.shared_vpc import may_use

_EXTERNAL_IP_CONSTRAINT = "compute.vmExternalIpAccess"
_SHIELDED_CONSTRAINT = "compute.requireShieldedVm"
_LOCATION_CONSTRAINT = "gcp.resourceLocations"
_LABEL = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_LOCAL_SSD_GB = "375"  # docs.cloud.google.com/compute/docs/disks/local-ssd
# Of initializeParams: those of the new disk itself.
_DISK_FIELDS = (
    *("architecture", "description", "enableConfidentialCompute", "labels", "licenses"),
    *("provisionedIops", "provisionedThroughput", "replicaZones", "sourceImage", "sourceSnapshot"),
    "storagePool",
)
_ONLY_REGIONAL = "Only regional disks can be attached by force."  # a guess
_HOSTNAME = re.compile(
    r"(?=.{1,253}$)[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)+"
)
_COPIED_FIELDS = (
    *("advancedMachineFeatures", "canIpForward", "confidentialInstanceConfig", "description"),
    *("displayDevice", "hostname", "keyRevocationActionType", "localSsdEncryptionMode"),
    *("minCpuPlatform", "name", "networkPerformanceConfig", "privateIpv6GoogleAccess"),
)


@dataclass(frozen=True)
class Sources:
    """The collections that instances refer to."""

    context: ComputeContext
    disks: Disks
    subnetworks: Subnetworks


@dataclass(frozen=True)
class Draft:
    """A new instance and the disks to create with it, by full name."""

    row: Row
    disks: dict[str, Row]
    wait_seconds: int = 0  # for capacity
    forced_disks: tuple[str, ...] = ()  # disks that others lose, by forceAttach


def draft(sources: Sources, name: str, body: Row) -> Draft:
    """Raises the errors that Google returns before accepting the request."""
    check_supported(body, INSTANCE)
    hostname = body.get("hostname", "")
    if hostname and not _HOSTNAME.fullmatch(hostname):
        # "must be RFC1035 compliant", says its description; the wording is a guess.
        raise bad_field("resource.hostname", hostname, "Must be a fully qualified domain name.")
    project = sources.context.registry.projects.require(name.split("/")[1])
    _check_location(sources, project, name)
    if body.get("resourcePolicies"):  # error of workload policies: public reports of 2026-07
        raise invalid(
            "Resource policy must have one of [VmMaintenancePolicy, GroupPlacementPolicy, "
            "InstanceSchedulePolicy]"
        )
    shielded = {
        "enableSecureBoot": False,
        "enableVtpm": True,
        "enableIntegrityMonitoring": True,
        **body.get("shieldedInstanceConfig", {}),
    }
    _check_shielded(sources, project, shielded)
    disks: dict[str, Row] = {}
    full_type = machine_type_of(name, body)
    machine = stored_machine_type(full_type)
    scheduled = scheduling(body.get("scheduling", {}))
    row: Row = {
        **{key: body[key] for key in _COPIED_FIELDS if key in body},
        "machineType": full_type,
        "tags": {"items": body.get("tags", {}).get("items", [])},
        "metadata": {
            "items": checked_items(sources.context, project["id"], body.get("metadata", {}))
        },
        "labels": _labels(body.get("labels", {})),
        "scheduling": scheduled,
        **reservation_of(sources.context, name, body, machine, scheduled["provisioningModel"]),
        "serviceAccounts": service_accounts(project, body.get("serviceAccounts", [])),
        "networkInterfaces": _interfaces(sources, project, name, body),
        "deletionProtection": body.get("deletionProtection", False),
        "shieldedInstanceConfig": shielded,
        "status": "PROVISIONING",
    }
    requested = body.get("disks", [])
    if not requested:
        raise bad_field("resource.disks", "", "No disks are specified.")
    row["disks"] = [
        _disk(sources, name, index, disk, disks, machine) for index, disk in enumerate(requested)
    ]
    if [disk["boot"] for disk in row["disks"]].count(True) != 1 or not row["disks"][0]["boot"]:
        reason = "Exactly one boot disk must be specified, and first."
        raise bad_field("resource.disks[0].boot", "", reason)
    forced_disks = [
        disk["source"]
        for disk, attachment in zip(row["disks"], requested, strict=True)
        if attachment.get("forceAttach")
    ]
    return Draft(
        row, disks, wait_seconds(body, scheduled["provisioningModel"]), tuple(forced_disks)
    )


def attached_disk(
    sources: Sources,
    name: str,
    index: int,
    body: Row,
    machine: MachineType,
    field: str = "resource.source",
) -> Row:
    """The attachment of an existing disk to an instance.

    With `forceAttach`, a regional disk may be in use: its other users lose it.
    """
    zone = name.split("/instances/", maxsplit=1)[0]
    source = full_disk(zone, body.get("source", ""))
    disk = sources.disks.find(source)
    if disk is None:
        raise unknown_reference(field, body.get("source", ""), "disk")
    if zone not in disk.get("replicaZones", (zone,)):  # a guess
        reason = f"The disk has no replica in the zone '{zone.rpartition('/')[2]}'."
        raise bad_field(field, body["source"], reason)
    if is_replicated_to(disk):  # a guess
        raise bad_field(field, body["source"], "The disk is the target of a replication.")
    _check_disk_type(disk["type"].rpartition("/")[2], machine)
    mode = body.get("mode", "READ_WRITE")
    if body.get("forceAttach"):
        if not is_regional(source):  # "you will receive an error": the field's description
            raise bad_field(f"{field.rpartition('.')[0]}.forceAttach", "true", _ONLY_REGIONAL)
        return _disk_attachment(source, disk, index, body)
    for user in sources.disks.users_of(source):
        if mode == "READ_WRITE" or _is_written(sources, source, user):
            raise in_use("disk", source, user)
    return _disk_attachment(source, disk, index, body)


def _is_written(sources: Sources, disk: str, user: str) -> bool:
    """Whether an instance has the disk attached in a mode that does not allow a second user."""
    attachments = (sources.context.find(INSTANCES, user) or {}).get("disks", ())
    return any(
        attachment.get("source") == disk and attachment["mode"] == "READ_WRITE"
        for attachment in attachments
    )


def stored_machine_type(full_name: str) -> MachineType:
    """The machine type of an instance's row."""
    machine = machine_type(full_name.rpartition("/")[2])
    assert machine is not None, "only known types are stored"
    return machine


def machine_type_of(name: str, body: Row) -> str:
    """The full name of the requested machine type, in the zone of the instance `name`."""
    kind = body.get("machineType", "").rpartition("/")[2]
    full = f"{name.split('/instances/', maxsplit=1)[0]}/machineTypes/{kind}"
    zone, machine = name.split("/")[3], machine_type(kind)
    if machine is None or not machine.is_in(zone):
        reason = f"Machine type with name '{kind}' does not exist in zone '{zone}'."
        raise bad_field("resource.machineType", body.get("machineType", ""), reason)
    if machine.tpu is not None and not machine.tpu.is_sold:
        # Error 403 in public reports of 2026-08: listed for GKE, not sold as instances.
        text = f"This user agent is not allowed to use the machine type [{kind}]."
        raise ApiError("PERMISSION_DENIED", text, reason="forbidden")
    return full


def _check_location(sources: Sources, project: Project, name: str) -> None:
    """Wording seen in public, though never the complete response."""
    zone, policies = name.split("/")[3], OrgPolicies(sources.context.registry.store)
    if not policies.allows(f"projects/{project['id']}", _LOCATION_CONSTRAINT, zone):
        raise condition_not_met(
            f"Location ZONE:{zone} violates constraint constraints/{_LOCATION_CONSTRAINT} on the "
            f"resource {name}."
        )


def _check_shielded(sources: Sources, project: Project, config: Row) -> None:
    """hashicorp/packer#7846; the words for what else may be off are by analogy."""
    policies, owner = OrgPolicies(sources.context.registry.store), f"projects/{project['id']}"
    names = {
        "enableSecureBoot": "Secure Boot",
        "enableVtpm": "vTPM",
        "enableIntegrityMonitoring": "Integrity Monitoring",
    }
    missing = next((name for field, name in names.items() if not config[field]), None)
    if missing is not None and policies.is_enforced(owner, _SHIELDED_CONSTRAINT):
        raise condition_not_met(
            f"Constraint constraints/{_SHIELDED_CONSTRAINT} violated for project {owner}. "
            f"{missing} is not enabled in the 'shielded_instance_config' field. See "
            "https://cloud.google.com/resource-manager/docs/organization-policy/"
            "org-policy-constraints for more information."
        )


def _labels(labels: dict[str, str]) -> dict[str, str]:
    for key, value in labels.items():
        if not _LABEL.fullmatch(key):
            raise bad_field("resource.labels", key, "Label key must match '[a-z][-_a-z0-9]{0,62}'.")
        if not re.fullmatch(r"[-_a-z0-9]{0,63}", value):
            reason = "Label value must match '[-_a-z0-9]{0,63}'."
            raise bad_field("resource.labels", value, reason)
    return labels


def service_accounts(project: Project, requested: Rows) -> Rows:
    """At most one account; `default` is the project's default one."""
    if len(requested) > 1:
        raise invalid("At most one service account may be specified.")
    default = f"{project['number']}-compute@developer.gserviceaccount.com"
    return [
        {
            "email": default if account.get("email") in (None, "", "default") else account["email"],
            "scopes": account.get("scopes", []),
        }
        for account in requested
    ]


def _interfaces(sources: Sources, project: Project, name: str, body: Row) -> Rows:
    interfaces = body.get("networkInterfaces", [])
    if len(interfaces) != 1:
        reason = (
            "At least one network interface is required."
            if not interfaces
            else "Only one network interface is supported."
        )
        raise bad_field("resource.networkInterfaces", "", reason)
    region = region_of(name.split("/")[3])
    requested = interfaces[0]
    subnetwork_name = relative_name(requested.get("subnetwork", ""))
    if subnetwork_name:
        if not subnetwork_name.startswith("projects/"):
            subnetwork_id = subnetwork_name.rpartition("/")[2]
            subnetwork_name = (
                f"projects/{project['id']}/regions/{region}/subnetworks/{subnetwork_id}"
            )
        _check_owner(sources, project, "subnetwork", requested["subnetwork"], subnetwork_name)
        subnetwork = sources.subnetworks.find(subnetwork_name)
        if subnetwork is None or subnetwork_name.split("/")[3] != region:
            field = "resource.networkInterfaces[0].subnetwork"
            raise unknown_reference(field, requested["subnetwork"], "subnetwork")
        network = subnetwork["network"]
    else:
        network = full_network(
            sources.context.registry.projects, project["id"], requested.get("network", "")
        )
        _check_owner(sources, project, "network", requested.get("network", ""), network)
        if sources.context.registry.store.get(NETWORKS, network) is None:
            field = "resource.networkInterfaces[0].network"
            raise unknown_reference(field, requested.get("network", ""), "network")
        subnetwork_id = network.rpartition("/")[2]
        subnetwork_name = (
            f"{network.split('/global/')[0]}/regions/{region}/subnetworks/{subnetwork_id}"
        )
        if sources.subnetworks.find(subnetwork_name) is None:
            reason = "Subnetwork should be specified for custom subnetmode network"
            raise bad_field("resource.networkInterfaces[0]", "", reason)
    if (stack_type := requested.get("stackType", "IPV4_ONLY")) != "IPV4_ONLY":
        raise unsupported_field(f"resource.networkInterfaces[0].stackType: {stack_type}")
    interface = {
        **{key: requested[key] for key in ("nicType", "queueCount") if key in requested},
        "name": "nic0",
        "network": network,
        "subnetwork": subnetwork_name,
        "stackType": "IPV4_ONLY",
        "accessConfigs": [
            {
                "kind": "compute#accessConfig",
                "type": "ONE_TO_ONE_NAT",
                "name": access.get("name", "External NAT"),
                "networkTier": access.get("networkTier", "PREMIUM"),
            }
            for access in requested.get("accessConfigs", [])
        ],
    }
    allows = OrgPolicies(sources.context.registry.store).allows
    if interface["accessConfigs"] and not allows(
        f"projects/{project['id']}", _EXTERNAL_IP_CONSTRAINT, name
    ):
        # gardener/gardener-extension-provider-gcp#415 and others: error 412, conditionNotMet.
        raise condition_not_met(
            f"Constraint constraints/{_EXTERNAL_IP_CONSTRAINT} violated for project "
            f"{project['number']}. Add instance {name} to the constraint to use external IP "
            "with it."
        )
    return [interface]


def _check_owner(sources: Sources, project: Project, field: str, reference: str, full: str) -> None:
    """Wording: Dataflow's documentation, "Common errors", and public notes on Shared VPC."""
    if not may_use(sources.context.store, project["id"], full.split("/")[1]):
        reason = "Cross-project references for this resource are not allowed."
        raise bad_field(f"resource.networkInterfaces[0].{field}", reference, reason)


def _disk(
    sources: Sources,
    name: str,
    index: int,
    body: Row,
    new_disks: dict[str, Row],
    machine: MachineType,
) -> Row:
    if "source" in body and body.get("type") != "SCRATCH":
        field = f"resource.disks[{index}].source"
        return attached_disk(sources, name, index, body, machine, field)
    params = body.get("initializeParams", {})
    if body.get("forceAttach") and not params.get("replicaZones"):
        raise bad_field(f"resource.disks[{index}].forceAttach", "true", _ONLY_REGIONAL)
    if body.get("type") == "SCRATCH":
        return _local_ssd(index, body)
    base, instance_id = name.split("/instances/")
    disk_name = params.get("diskName") or (
        instance_id if body.get("boot") else f"{instance_id}-{index}"
    )
    region = f"projects/{base.split('/')[1]}/regions/{region_of(base.split('/')[3])}"
    full = f"{region if params.get('replicaZones') else base}/disks/{disk_name}"
    if full in new_disks or sources.disks.find(full) is not None:
        raise already_exists(full)
    kind = params.get("diskType", "")
    if machine.tpu is not None:
        kind = kind or f"diskTypes/{machine.tpu.disk_types[0]}"
        _check_disk_type(kind.rpartition("/")[2], machine)
    row: Row = {"name": disk_name, "type": kind}
    row |= {field: params[field] for field in _DISK_FIELDS if field in params}
    row |= {
        field: body[field] for field in ("guestOsFeatures", "diskEncryptionKey") if field in body
    }
    if size := params.get("diskSizeGb") or body.get("diskSizeGb"):
        row["sizeGb"] = size
    place = f"resource.disks[{index}].initializeParams"
    fields = (f"{place}.diskType", f"{place}.diskSizeGb", f"{place}.sourceImage")
    new_disks[full] = sources.disks.with_defaults(full, row, fields)
    if base not in new_disks[full].get("replicaZones", (base,)):  # AttachedDisk's description
        reason = f"One of them must be the zone '{base.rpartition('/')[2]}' of the instance."
        raise bad_field(f"{place}.replicaZones", params["replicaZones"][0], reason)
    return _disk_attachment(full, new_disks[full], index, body)


def _local_ssd(index: int, body: Row) -> Row:
    """It belongs to the instance alone, and is no disk of the project."""
    return {
        "kind": "compute#attachedDisk",
        "type": "SCRATCH",
        "index": index,
        "boot": False,
        "autoDelete": True,
        "deviceName": body.get("deviceName") or f"local-ssd-{index - 1}",
        "mode": "READ_WRITE",
        "interface": body.get("interface", "SCSI"),
        "diskSizeGb": body.get("diskSizeGb", _LOCAL_SSD_GB),
    }


def _check_disk_type(kind: str, machine: MachineType) -> None:
    """Machines with chips take persistent disks or Hyperdisks: error 400 in reports of 2026."""
    supported = machine.tpu.disk_types if machine.tpu is not None else (kind,)
    if kind.partition("-")[0] not in {name.partition("-")[0] for name in supported}:
        text = f"{kind} disk type cannot be used by {machine.name} machine type."
        raise invalid(text, reason="badRequest")


def _disk_attachment(source: str, disk: Row, index: int, body: Row) -> Row:
    row: dict[str, Any] = {
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "source": source,
        "index": index,
        "boot": body.get("boot", False),
        "autoDelete": body.get("autoDelete", False),
        "deviceName": body.get("deviceName") or f"persistent-disk-{index}",
        "mode": body.get("mode", "READ_WRITE"),
        "interface": body.get("interface", "SCSI"),
        "diskSizeGb": disk["sizeGb"],
    }
    for field in ("licenses", "guestOsFeatures", "architecture", "diskEncryptionKey"):
        if field in disk:
            row[field] = disk[field]
    if "diskEncryptionKey" in body:
        row["diskEncryptionKey"] = shown_key(body["diskEncryptionKey"])
    return row
