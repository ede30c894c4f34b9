"""Storage pools: capacity of a zone that Hyperdisks are made in.

docs.cloud.google.com/compute/docs/disks/storage-pools; the errors' wordings are guesses.
"""

from __future__ import annotations

from typing import Any

from tpuctl.emulator.compute.core.collection import Collection, Items, Row, idempotent
from tpuctl.emulator.compute.core.context import DISKS, INSTANCES, STORAGE_POOLS, ComputeContext
from tpuctl.emulator.compute.core.errors import bad_field, in_use, unknown_reference
from tpuctl.emulator.compute.core.fingerprint import fingerprint
from tpuctl.emulator.compute.core.lists import listed
from tpuctl.emulator.compute.core.messages import LINK, as_row
from tpuctl.emulator.compute.core.supported_fields import STORAGE_POOL, check_supported
from tpuctl.emulator.compute.disks.references import place_of
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.state.resource_names import relative_name
from tpuctl.emulator.wire.messages import json_name
from tpuctl.emulator.wire.registry import Caller

_TYPES = ("hyperdisk-balanced", "hyperdisk-throughput")
_MIN_CAPACITY_GB = 10 * 1024
_OVERPROVISIONING = {"ADVANCED": 5}  # the size of all disks together, in capacities of the pool
_UPDATED = (
    "labels",
    "poolProvisionedCapacityGb",
    "poolProvisionedIops",
    "poolProvisionedThroughput",
)
_FIXED = "capacityProvisioningType"


def pool_of_disk(context: ComputeContext, disk: str, row: Row) -> Row:
    """The row of a new disk, with the full name of its pool if it has one."""
    reference = row.get("storagePool", "")
    if not reference:
        return row
    field, name = "resource.storagePool", relative_name(reference)
    if not name.startswith("projects/"):
        name = f"{place_of(disk)}/storagePools/{name.rpartition('/')[2]}"
    pool = context.find(STORAGE_POOLS, name)
    if pool is None or place_of(name) != place_of(disk):
        raise unknown_reference(field, reference, "storagePool")
    kind = pool["storagePoolType"].rpartition("/")[2]
    if row["type"].rpartition("/")[2] != kind:
        raise bad_field(field, reference, f"The pool is for disks of the type '{kind}'.")
    used = sum(int(each["sizeGb"]) for _, each in _disks_of(context, name))
    if used + int(row["sizeGb"]) > _max_disk_capacity(pool):
        raise bad_field(field, reference, "The capacity of the pool is exceeded.")
    return {**row, "storagePool": name}


def _disks_of(context: ComputeContext, pool: str) -> Items:
    disks = context.items(DISKS, f"{place_of(pool)}/")
    return [(name, disk) for name, disk in disks if disk.get("storagePool") == pool]


def _max_disk_capacity(pool: Row) -> int:
    return int(pool["poolProvisionedCapacityGb"]) * _OVERPROVISIONING.get(pool[_FIXED], 1)


class StoragePools(Collection):
    """Storage pools of a zone."""

    kind, message, plural, field = STORAGE_POOLS, "StoragePool", "storagePools", "storage_pool"
    scope, supported, links = "zones", STORAGE_POOL, ("storagePoolType",)

    def complete(self, name: str, row: Row) -> Row:
        kind = row.get("storagePoolType", "").rpartition("/")[2]
        if kind not in _TYPES:
            reference = row.get("storagePoolType", "")
            raise unknown_reference("resource.storagePoolType", reference, "storagePoolType")
        _check_capacity(row)
        return {
            _FIXED: "STANDARD",
            "performanceProvisioningType": "STANDARD",
            **row,
            "storagePoolType": f"{place_of(name)}/storagePoolTypes/{kind}",
            "state": "READY",
        }

    def show(self, name: str, row: Row) -> Row:
        disks = [disk for _, disk in _disks_of(self.context, name)]
        status = {
            "diskCount": str(len(disks)),
            "maxTotalProvisionedDiskCapacityGb": str(_max_disk_capacity(row)),
            "poolUsedCapacityBytes": "0",  # nothing is written
            "totalProvisionedDiskCapacityGb": _total(disks, "sizeGb"),
            "totalProvisionedDiskIops": _total(disks, "provisionedIops"),
            "totalProvisionedDiskThroughput": _total(disks, "provisionedThroughput"),
        }
        return {
            **super().show(name, row),
            "labelFingerprint": fingerprint(row.get("labels", {})),
            "resourceStatus": status,
            "status": status,
        }

    @idempotent
    async def update(self, name: str, request: Any, caller: Caller) -> Any:
        """Labels and sizes; those that the mask names, or else all that are given."""
        row, body = self.require(name), as_row(request.storage_pool_resource)
        check_supported(body, dict.fromkeys((*_UPDATED, "name")))
        mask = [json_name(path.strip()) for path in request.update_mask.split(",") if path]
        for path in mask:
            if path not in _UPDATED:
                raise bad_field("updateMask", path, "The field cannot be updated.")
        changes = {field: body[field] for field in mask or _UPDATED if field in body}
        changed = {**row, **changes}
        _check_capacity(changed)
        used = sum(int(disk["sizeGb"]) for _, disk in _disks_of(self.context, name))
        if used > _max_disk_capacity(changed):
            value = str(changed["poolProvisionedCapacityGb"])
            reason = "It is too small for the disks of the pool."
            raise bad_field("resource.poolProvisionedCapacityGb", value, reason)
        arguments = {"row": changes}
        return self.begin("patch", name, caller, arguments, request.request_id, shown_verb="update")

    async def list_disks(self, request: Any, caller: Caller) -> Any:
        name = self.name_of(request)
        self.require(name)
        instances = self.context.items(INSTANCES, f"{place_of(name)}/")
        rows = [
            _shown_disk(disk_name, disk, instances)
            for disk_name, disk in _disks_of(self.context, name)
        ]
        kind, scope = "compute#storagePoolListDisks", f"{name}/listDisks"
        return listed(request, "StoragePoolListDisks", kind, rows, scope)

    def check_deletable(self, name: str) -> None:
        for disk, _ in _disks_of(self.context, name):
            raise in_use("storagePool", name, disk)


def _check_capacity(row: Row) -> None:
    field = "resource.poolProvisionedCapacityGb"
    if "poolProvisionedCapacityGb" not in row:
        raise invalid(f"Required field '{field}' not specified", reason="required")
    capacity = row["poolProvisionedCapacityGb"]
    if int(capacity) < _MIN_CAPACITY_GB:
        raise bad_field(field, str(capacity), f"It must be at least {_MIN_CAPACITY_GB} GB.")


def _shown_disk(name: str, disk: Row, instances: Items) -> Row:
    copied = ("creationTimestamp", "name", "provisionedIops", "provisionedThroughput", "sizeGb")
    users = [
        instance
        for instance, row in instances
        if any(each.get("source") == name for each in row["disks"])
    ]
    return {
        **{field: disk[field] for field in (*copied, "status") if field in disk},
        "disk": LINK + name,
        "type": LINK + disk["type"],
        "attachedInstances": [LINK + instance for instance in users],
        "resourcePolicies": [LINK + policy for policy in disk.get("resourcePolicies", ())],
        "usedBytes": "0",
    }


def _total(disks: list[Row], field: str) -> str:
    return str(sum(int(disk.get(field, 0)) for disk in disks))
