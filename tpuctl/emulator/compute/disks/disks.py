"""Persistent disks and snapshots. Their content is not emulated."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from tpuctl.emulator.compute.core.collection import (
    FixedCollection,
    LabeledCollection,
    Row,
    Rows,
    check_name,
    idempotent,
)
from tpuctl.emulator.compute.core.context import DISKS, RESOURCE_POLICIES, ComputeContext
from tpuctl.emulator.compute.core.errors import (
    bad_field,
    condition_not_met,
    failed,
    failed_in_use,
    in_use,
    not_found,
    unknown_reference,
)
from tpuctl.emulator.compute.core.messages import LINK, as_row
from tpuctl.emulator.compute.core.supported_fields import DISK
from tpuctl.emulator.compute.disks.images import boot_fields, find_image, image_id
from tpuctl.emulator.state.constraints import OrgPolicies
from tpuctl.emulator.state.locations import region_of
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.state.resource_names import relative_name
from tpuctl.emulator.wire.registry import Caller

# By type: whether it counts against SSD quota, and the default size in GB
# (cloud.google.com/compute/docs/disks).
TYPES = {
    "pd-standard": (False, 500),
    "pd-balanced": (True, 100),
    "pd-ssd": (True, 100),
    "pd-extreme": (True, 1000),
    "hyperdisk-balanced": (True, 100),
    "hyperdisk-ml": (True, 100),
}
_SIZES = {"pd-extreme": (500, 65536), "hyperdisk-balanced": (4, 65536), "hyperdisk-ml": (4, 65536)}
_TITLES = {
    "pd-standard": "Standard Persistent Disk",
    "pd-balanced": "Balanced Persistent Disk",
    "pd-ssd": "SSD Persistent Disk",
    "pd-extreme": "Extreme Persistent Disk",
    "hyperdisk-balanced": "Hyperdisk Balanced",
    "hyperdisk-ml": "Hyperdisk ML",
}

_INSERT_FIELDS = ("resource.type", "resource.sizeGb", "resource.sourceImage")
_DEFAULTS = {
    "enableConfidentialCompute": False,
    "physicalBlockSizeBytes": "4096",
    "satisfiesPzi": False,
}


def _boot_fields(source: Row) -> Row:
    """What disks and snapshots made from a disk or snapshot of an image keep of it."""
    fields = ("architecture", "guestOsFeatures", "licenseCodes", "licenses")
    return {field: source[field] for field in fields if field in source}


def full_snapshot(project: str, reference: str) -> str:
    """The full name of a snapshot given as a link, a partial link, or a bare name."""
    name = relative_name(reference)
    if name.startswith("projects/"):
        return name
    return f"projects/{project}/global/snapshots/{name.rpartition('/')[2]}"


def full_disk(zone: str, reference: str) -> str:
    """The full name of a disk given as a link, a partial link, or a bare name; `zone` is
    `projects/P/zones/Z`."""
    name = relative_name(reference)
    if name.startswith("projects/"):
        return name
    if match := re.fullmatch(r"(?:.*/)?(zones/[^/]+/disks/[^/]+)", name):
        return f"projects/{zone.split('/')[1]}/{match[1]}"
    return f"{zone}/disks/{name.rpartition('/')[2]}"


def _region(disk: str) -> str:
    return region_of(disk.split("/")[3])


def _full_policy(disk: str, reference: str) -> str:
    """The full name of a resource policy, given as a link or a partial one."""
    name = relative_name(reference)
    if name.startswith("projects/"):
        return name
    if name.startswith("regions/"):
        return f"projects/{disk.split('/')[1]}/{name}"
    base = f"projects/{disk.split('/')[1]}/regions/{_region(disk)}"
    return f"{base}/resourcePolicies/{name.rpartition('/')[2]}"


def shown_key(key: Row) -> Row:
    """An encryption key as responses show it: a customer's own key only by its hash.

    CustomerEncryptionKey.sha256: of the key itself, in base64. Content is not encrypted here.
    """
    resource = {field: value for field, value in key.items() if field != "rawKey"}
    if "rawKey" in key:
        try:
            digest = hashlib.sha256(base64.b64decode(key["rawKey"], validate=True)).digest()
        except ValueError:
            reason = "The key must be encoded in base64."
            raise bad_field("resource.diskEncryptionKey.rawKey", "", reason) from None
        resource["sha256"] = base64.b64encode(digest).decode()
    return resource


class Snapshots(LabeledCollection):
    """Snapshots of a project."""

    kind, message, plural, field = "compute.snapshots", "Snapshot", "snapshots", "snapshot"
    links, labels_field = ("sourceDisk",), "global_set_labels_request_resource"

    def complete(self, name: str, row: Row) -> Row:
        if not row.get("sourceDisk"):
            raise bad_field("resource.sourceDisk", "", "A source disk is required.")
        source = full_disk(f"projects/{name.split('/')[1]}", row["sourceDisk"])
        disk = self.context.find(DISKS, source)
        if disk is None:
            raise not_found(source)
        return {
            "snapshotType": "STANDARD",
            "storageLocations": [region_of(source.split("/")[3])],
            **row,
            "sourceDisk": source,
            "sourceDiskId": disk["id"],
            "diskSizeGb": disk["sizeGb"],
            **_boot_fields(disk),
            "status": "READY",
            "storageBytes": "0",
            "storageBytesStatus": "UP_TO_DATE",
            "downloadBytes": "0",
            "creationSizeBytes": "0",
            "autoCreated": False,
        }


class Disks(LabeledCollection):
    """Zonal disks."""

    kind, message, plural, field = DISKS, "Disk", "disks", "disk"
    scope, supported, labels_field = "zones", DISK, "zone_set_labels_request_resource"
    links = ("type", "sourceDisk", "sourceImage", "sourceSnapshot")

    def __init__(
        self,
        context: ComputeContext,
        snapshots: Snapshots,
        disk_refusal: Callable[[str, Row], Any | None],
    ) -> None:
        """`disk_refusal` returns the arguments of `failed` if quota forbids a disk, else None."""
        super().__init__(context)
        self._snapshots = snapshots
        self._disk_refusal = disk_refusal

    def verbs(self) -> dict[str, Effect]:
        return {
            **super().verbs(),
            "resize": Effect(self.finish_patch),
            "addResourcePolicies": Effect(self.finish_patch),
            "removeResourcePolicies": Effect(self.finish_patch),
            "createSnapshot": Effect(self._finish_snapshot),
        }

    def show(self, name: str, row: Row) -> Row:
        return self._show(name, row, self.users_of(name))

    def show_all(self, names: Sequence[str]) -> Rows:
        if not names:
            return []
        users = self._users(names[0].split("/")[1])
        return [self._show(name, self.require(name), users.get(name, [])) for name in names]

    def _show(self, name: str, row: Row, users: list[str]) -> Row:
        resource = super().show(name, row)
        if users:
            resource.setdefault("lastAttachTimestamp", row["creationTimestamp"])
            resource["users"] = [LINK + user for user in users]
        if policies := row.get("resourcePolicies"):
            resource["resourcePolicies"] = [LINK + policy for policy in policies]
        return resource

    async def insert(self, request: Any, caller: Caller) -> Any:
        if request.source_image and not request.disk_resource.source_image:
            request.disk_resource.source_image = request.source_image
        return await super().insert(request, caller)

    @idempotent
    async def resize(self, name: str, request: Any, caller: Caller) -> Any:
        """Disks can only grow."""
        size = int(as_row(request.disks_resize_request_resource).get("sizeGb", 0))
        if size < int(self.require(name)["sizeGb"]):
            reason = "The new disk size must not be smaller than the old one."  # a guess
            raise bad_field("sizeGb", str(size), reason)
        changes = {"row": {"sizeGb": str(size)}}
        return self.begin("resize", name, caller, changes, request.request_id)

    @idempotent
    async def add_resource_policies(self, name: str, request: Any, caller: Caller) -> Any:
        """Snapshot schedules of the disk's region."""
        present = self.require(name).get("resourcePolicies", [])
        references = request.disks_add_resource_policies_request_resource.resource_policies
        policies = [_full_policy(name, reference) for reference in references]
        for policy, reference in zip(policies, references, strict=True):
            row = self.context.find(RESOURCE_POLICIES, policy)
            if row is None:
                raise unknown_reference("resourcePolicies", reference, "resourcePolicy")
            if "snapshotSchedulePolicy" not in row or row["region"] != _region(name):  # a guess
                reason = "It must be a snapshot schedule of the disk's region."
                raise bad_field("resourcePolicies", reference, reason)
        changes = {"resourcePolicies": [*dict.fromkeys([*present, *policies])]}
        arguments = {"row": changes}
        return self.begin("addResourcePolicies", name, caller, arguments, request.request_id)

    @idempotent
    async def remove_resource_policies(self, name: str, request: Any, caller: Caller) -> Any:
        present = self.require(name).get("resourcePolicies", [])
        references = request.disks_remove_resource_policies_request_resource.resource_policies
        removed = [_full_policy(name, reference) for reference in references]
        for policy, reference in zip(removed, references, strict=True):
            if policy not in present:  # a guess
                reason = "The resource policy is not attached to the disk."
                raise bad_field("resourcePolicies", reference, reason)
        changes = {"resourcePolicies": [policy for policy in present if policy not in removed]}
        arguments = {"row": changes}
        return self.begin("removeResourcePolicies", name, caller, arguments, request.request_id)

    @idempotent
    async def create_snapshot(self, name: str, request: Any, caller: Caller) -> Any:
        self.require(name)
        row = as_row(request.snapshot_resource)
        self._snapshots.check_fields(row)
        check_name(row.get("name", ""))
        snapshot = full_snapshot(name.split("/")[1], row["name"])
        self._snapshots.require_unused_name(snapshot)
        row = self._snapshots.complete(snapshot, {**row, "sourceDisk": name})
        arguments = {"snapshot": snapshot, "row": row}
        return self.begin("createSnapshot", name, caller, arguments, request.request_id)

    def _finish_snapshot(self, arguments: Arguments) -> None:
        self._snapshots.finish_insert({**arguments, "target": arguments["snapshot"]})

    def check_deletable(self, name: str) -> None:
        for user in self.users_of(name):
            raise in_use("disk", name, user)

    def complete(self, name: str, row: Row) -> Row:
        refusal = self._disk_refusal(name, self.with_defaults(name, row))
        complete = self.with_defaults(name, row)
        if refusal is not None:
            complete["refusal"] = refusal
        return complete

    def with_defaults(
        self, name: str, row: Row, fields: tuple[str, str, str] = _INSERT_FIELDS
    ) -> Row:
        """The row with its defaults, ignoring quota.

        `fields` are the request's fields for the type, size, and image, which errors name.
        """
        type_field, size_field, image_field = fields
        base = name.split("/disks/", maxsplit=1)[0]
        folder, _, kind = row.get("type", "").rpartition("/")
        if kind and not folder.endswith("diskTypes"):  # hashicorp/terraform-provider-google#275
            raise bad_field(type_field, kind, "The URL is malformed.")
        kind = kind or "pd-standard"
        if kind not in TYPES:
            raise unknown_reference(type_field, row["type"], "diskType")
        complete = {**row, "type": f"{base}/diskTypes/{kind}", "status": "READY"}
        min_size, size = 0, int(row.get("sizeGb", 0))
        if row.get("sourceImage"):
            image = find_image(row["sourceImage"], image_field)
            self._check_trusted(name.split("/")[1], image.project)
            complete |= {"sourceImage": image.full_name, "sourceImageId": image_id(image)}
            complete |= boot_fields(image)
            min_size = image.size_gb
        if row.get("sourceSnapshot"):
            source = full_snapshot(name.split("/")[1], row["sourceSnapshot"])
            snapshot = self._snapshots.require(source)
            complete |= {"sourceSnapshot": source, "sourceSnapshotId": snapshot["id"]}
            complete |= _boot_fields(snapshot)
            min_size = int(snapshot["diskSizeGb"])
        if row.get("sourceDisk"):
            source = full_disk(base, row["sourceDisk"])
            disk = self.find(source)
            if disk is None:
                raise unknown_reference("resource.sourceDisk", row["sourceDisk"], "disk")
            complete |= {"sourceDisk": source, "sourceDiskId": disk["id"], **_boot_fields(disk)}
            min_size = int(disk["sizeGb"])
        if features := row.get("guestOsFeatures"):
            inherited = complete["guestOsFeatures"]
            additional = [feature for feature in features if feature not in inherited]
            complete["guestOsFeatures"] = inherited + additional
        if "diskEncryptionKey" in row:
            complete["diskEncryptionKey"] = shown_key(row["diskEncryptionKey"])
        if 0 < size < min_size:
            source_kind = next(
                kind for kind in ("Disk", "Snapshot", "Image") if row.get(f"source{kind}")
            ).lower()
            reason = (
                f"Requested disk size cannot be smaller than the {source_kind} size ({min_size} GB)"
            )
            raise bad_field(size_field, str(size), reason)
        complete["sizeGb"] = str(size or min_size or TYPES[kind][1])
        return _DEFAULTS | complete

    def _check_trusted(self, project: str, image_project: str) -> None:
        """The text is a guess; GoogleCloudPlatform/gce-rescue#137 has it in the operation."""
        policies, constraint = OrgPolicies(self.store), "compute.trustedImageProjects"
        if not policies.allows(f"projects/{project}", constraint, f"projects/{image_project}"):
            raise condition_not_met(
                f"Constraint constraints/{constraint} violated for project {project}. Use of "
                f"images from project {image_project} is prohibited."
            )

    def check_deletion(self, name: str) -> None:
        for user in self.users_of(name):
            raise failed_in_use("disk", name, user)

    def finish_insert(self, arguments: Arguments) -> None:
        refusal = arguments["row"].get("refusal")
        if refusal is not None:
            raise failed(**refusal)
        super().finish_insert(arguments)

    def _users(self, project: str) -> dict[str, list[str]]:
        """Users by disk: instances, and TPU VMs with data disks."""
        users_by_disk: dict[str, list[str]] = {}
        for service in self.context.registry.machine_services():
            for disk, users in service.users_of_disks(project).items():
                users_by_disk.setdefault(disk, []).extend(users)
        return users_by_disk

    def users_of(self, name: str) -> list[str]:
        """The full names of resources that have the disk attached."""
        return self._users(name.split("/")[1]).get(name, [])


class DiskTypes(FixedCollection):
    """Disk types; every zone has the same."""

    message, plural, field = "DiskType", "diskTypes", "disk_type"
    scope = "zones"

    def find(self, name: str) -> Row | None:
        """Sizes from cloud.google.com/compute/docs/disks."""
        type_name = name.rpartition("/")[2]
        if type_name not in TYPES:
            return None
        min_size, max_size = _SIZES.get(type_name, (10, 65536))
        return {
            "kind": "compute#diskType",
            "id": str(int(hashlib.sha256(type_name.encode()).hexdigest()[:7], 16)),
            "creationTimestamp": "1969-12-31T16:00:00.000-08:00",  # Google's value for all of them
            "name": type_name,
            "description": _TITLES.get(type_name, type_name),
            "validDiskSize": f"{min_size}GB-{max_size}GB",
            "defaultDiskSizeGb": str(TYPES[type_name][1]),
        }

    def names_in(self, zone: str) -> Sequence[str]:
        return sorted(TYPES)
