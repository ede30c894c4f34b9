"""Persistent disks, zonal and regional. Their content is not emulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tpuctl.emulator.compute.core.collection import Row, Rows, check_name, idempotent
from tpuctl.emulator.compute.core.context import DISKS, RESOURCE_POLICIES, ComputeContext
from tpuctl.emulator.compute.core.errors import (
    bad_field,
    condition_not_met,
    failed,
    failed_in_use,
    in_use,
    unknown_reference,
)
from tpuctl.emulator.compute.core.messages import LINK, as_row
from tpuctl.emulator.compute.core.supported_fields import DISK
from tpuctl.emulator.compute.disks.content import (
    BOOT_IMAGE,
    Content,
    content_of_disk,
    content_of_image,
    content_of_snapshot,
)
from tpuctl.emulator.compute.disks.disk_types import REGIONAL_TYPES, TYPES
from tpuctl.emulator.compute.disks.encryption_keys import (
    check_key_policy,
    shown_key,
    usable_version,
)
from tpuctl.emulator.compute.disks.references import (
    full_policy,
    full_snapshot,
    is_regional,
    place_of,
)
from tpuctl.emulator.compute.disks.replication import ReplicatedDisks
from tpuctl.emulator.compute.disks.snapshots import Snapshots
from tpuctl.emulator.compute.disks.storage_pools import pool_of_disk
from tpuctl.emulator.state.constraints import OrgPolicies
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.state.locations import region_of, region_of_name, regions, zones
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.wire.registry import Caller

_INSERT_FIELDS = ("resource.type", "resource.sizeGb", "resource.sourceImage")
_DEFAULTS = {
    "enableConfidentialCompute": False,
    "physicalBlockSizeBytes": "4096",
    "satisfiesPzi": False,
}
_ATTACHED_POLICIES = ("diskConsistencyGroupPolicy", "snapshotSchedulePolicy")


class Disks(ReplicatedDisks):
    """Zonal disks, the aggregated list of all, and the effects of the operations of all.

    Every method works for regional disks too: which one it is, the full name tells.
    """

    kind, message, plural, field = DISKS, "Disk", "disks", "disk"
    scope, supported, labels_field = "zones", DISK, "zone_set_labels_request_resource"
    links = (
        *("type", "sourceDisk", "sourceImage", "sourceSnapshot", "sourceConsistencyGroupPolicy"),
        "storagePool",
    )
    internal = (BOOT_IMAGE,)
    bodies = "disks"

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

    def all_names(self, project: str) -> Sequence[str]:
        return self.names(f"projects/{project}/")

    def scopes(self) -> Sequence[str]:
        return [*map("regions/{}".format, regions()), *map("zones/{}".format, zones())]

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
        if is_regional(name):
            resource["replicaZones"] = [LINK + zone for zone in row["replicaZones"]]
        return resource

    async def insert(self, request: Any, caller: Caller) -> Any:
        if request.source_image and not request.disk_resource.source_image:
            request.disk_resource.source_image = request.source_image
        return await super().insert(request, caller)

    @idempotent
    async def resize(self, name: str, request: Any, caller: Caller) -> Any:
        """Disks can only grow."""
        size = int(as_row(self.body_of(request, "resize_request_resource")).get("sizeGb", 0))
        if size < int(self.require(name)["sizeGb"]):
            reason = "The new disk size must not be smaller than the old one."  # a guess
            raise bad_field("sizeGb", str(size), reason)
        changes = {"row": {"sizeGb": str(size)}}
        return self.begin("resize", name, caller, changes, request.request_id)

    @idempotent
    async def add_resource_policies(self, name: str, request: Any, caller: Caller) -> Any:
        """Snapshot schedules, and a consistency group, of the disk's region."""
        present = self.require(name).get("resourcePolicies", [])
        body = self.body_of(request, "add_resource_policies_request_resource")
        policies = [
            self._attachable_policy(name, reference) for reference in body.resource_policies
        ]
        attached = [*dict.fromkeys([*present, *policies])]
        groups = [policy for policy in attached if self.is_consistency_group(policy)]
        if len(groups) > 1:  # a guess
            reason = f"The disk is in the consistency group '{groups[0]}'."
            raise bad_field("resourcePolicies", groups[-1], reason)
        changes = {"resourcePolicies": attached}
        arguments = {"row": changes}
        return self.begin("addResourcePolicies", name, caller, arguments, request.request_id)

    def _attachable_policy(self, disk: str, reference: str) -> str:
        """The full name of a policy to be attached."""
        policy = full_policy(disk, reference)
        row = self.context.find(RESOURCE_POLICIES, policy)
        if row is None:
            raise unknown_reference("resourcePolicies", reference, "resourcePolicy")
        is_kind = any(kind in row for kind in _ATTACHED_POLICIES)
        if not is_kind or row["region"] != region_of_name(disk):  # a guess
            reason = "It must be a snapshot schedule or consistency group of the disk's region."
            raise bad_field("resourcePolicies", reference, reason)
        return policy

    @idempotent
    async def remove_resource_policies(self, name: str, request: Any, caller: Caller) -> Any:
        present = self.require(name).get("resourcePolicies", [])
        body = self.body_of(request, "remove_resource_policies_request_resource")
        references = body.resource_policies
        removed = [full_policy(name, reference) for reference in references]
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
        self.check_not_replicating(name)

    def complete(self, name: str, row: Row) -> Row:
        complete = self.with_defaults(name, row)
        refusal = self._disk_refusal(name, complete)
        return complete if refusal is None else {**complete, "refusal": refusal}

    def with_defaults(
        self, name: str, row: Row, fields: tuple[str, str, str] = _INSERT_FIELDS
    ) -> Row:
        """The row with its defaults, ignoring quota.

        `fields` are the request's fields for the type, size, and image, which errors name.
        """
        type_field, size_field, image_field = fields
        kind = _type_of(name, row, type_field)
        complete = {**row, "type": f"{place_of(name)}/diskTypes/{kind}", "status": "READY"}
        if is_regional(name):
            complete["replicaZones"] = _replica_zones(name, row)
        elif row.get("replicaZones"):
            reason = "Replica zones are of regional disks."  # a guess
            raise bad_field("resource.replicaZones", row["replicaZones"][0], reason)
        content = self._content(name, row, image_field)
        if content is not None:
            complete = content.copied_to(complete)
            _check_clone(content, complete)
        complete |= self._encryption(name, row.get("diskEncryptionKey", {}))
        complete["sizeGb"] = _size(row, content, kind, size_field)
        pooled = pool_of_disk(self.context, name, complete)
        return _DEFAULTS | self.with_primary(name, pooled)

    def _encryption(self, name: str, key: Row) -> Row:
        """The field of a disk for its key; that of Cloud KMS with the version in use."""
        if "kmsKeyName" in key:
            field = "resource.diskEncryptionKey.kmsKeyName"
            version = usable_version(self.context, name, key["kmsKeyName"], field)
            return {"diskEncryptionKey": {**key, "kmsKeyName": version}}
        if not key:
            check_key_policy(self.context, name, "")
            return {}
        return {"diskEncryptionKey": shown_key(key)}

    def _content(self, name: str, row: Row, image_field: str) -> Content | None:
        """What the disk is made from."""
        project, content = name.split("/")[1], None
        if row.get("sourceImage"):
            content = content_of_image(self.context, project, row["sourceImage"], image_field)
            self._check_trusted(project, content.name.split("/")[1])
        if row.get("sourceSnapshot"):
            content = content_of_snapshot(self.context, project, row["sourceSnapshot"])
        if row.get("sourceDisk"):
            content = content_of_disk(self.context, place_of(name), row["sourceDisk"])
            if content is None:
                raise unknown_reference("resource.sourceDisk", row["sourceDisk"], "disk")
        return content

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


class RegionDisks(Disks):
    """Disks with replicas in two zones of a region. They are stored beside the zonal ones."""

    scope, labels_field, bodies = "regions", "region_set_labels_request_resource", "region_disks"


def _type_of(disk: str, row: Row, field: str) -> str:
    folder, _, kind = row.get("type", "").rpartition("/")
    if kind and not folder.endswith("diskTypes"):  # hashicorp/terraform-provider-google#275
        raise bad_field(field, kind, "The URL is malformed.")
    kind = kind or "pd-standard"
    if kind not in (REGIONAL_TYPES if is_regional(disk) else TYPES):
        raise unknown_reference(field, row["type"], "diskType")
    return kind


def _size(row: Row, content: Content | None, kind: str, field: str) -> str:
    size, min_size = int(row.get("sizeGb", 0)), content.size_gb if content else 0
    if content is not None and 0 < size < min_size:
        reason = (
            f"Requested disk size cannot be smaller than the {content.noun} size ({min_size} GB)"
        )
        raise bad_field(field, str(size), reason)
    return str(size or min_size or TYPES[kind][1])


def _replica_zones(disk: str, row: Row) -> list[str]:
    """Exactly two zones of the region (Disk.replicaZones). The wording is a guess."""
    field, requested = "resource.replicaZones", row.get("replicaZones", [])
    if not requested:
        raise invalid(f"Required field '{field}' not specified", reason="required")
    names = [zone.rpartition("/")[2] for zone in requested]
    if len(set(names)) != 2 or len(names) != 2:
        raise bad_field(field, ", ".join(requested), "Exactly two replica zones must be specified.")
    for zone in names:
        if zone not in zones() or region_of(zone) != region_of_name(disk):
            raise bad_field(field, zone, "Replica zones must be in the region of the disk.")
    return [f"projects/{disk.split('/')[1]}/zones/{zone}" for zone in names]


def _check_clone(content: Content, row: Row) -> None:
    """A regional clone has a replica in the zone of its zonal source. The wording is a guess."""
    if content.noun != "disk" or "replicaZones" not in row or is_regional(content.name):
        return
    if place_of(content.name) not in row["replicaZones"]:
        reason = "One of the replica zones must be the zone of the source disk."
        raise bad_field("resource.replicaZones", row["replicaZones"][0], reason)
