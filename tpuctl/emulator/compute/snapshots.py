"""Snapshots of disks: resources with a size and a source. No content is imitated."""

from __future__ import annotations

from typing import Any

from tpuctl.emulator.compute.collection import Collection, Row, fingerprint
from tpuctl.emulator.compute.context import DISKS
from tpuctl.emulator.compute.errors import bad_field, not_found
from tpuctl.emulator.compute.messages import LINK
from tpuctl.emulator.state.locations import region_of
from tpuctl.emulator.state.resource_names import short
from tpuctl.emulator.wire.registry import Caller

__all__ = ["Snapshots", "full_snapshot"]


def full_snapshot(project: str, reference: str) -> str:
    """The full name of a snapshot that is given as a link, in part, or by its own name."""
    found = short(reference)
    if found.startswith("projects/"):
        return found
    return f"projects/{project}/global/snapshots/{found.rpartition('/')[2]}"


class Snapshots(Collection):
    """Snapshots of a project."""

    kind, message, plural, field = "compute.snapshots", "Snapshot", "snapshots", "snapshot"

    def show(self, name: str, row: Row) -> Row:
        shown = {**super().show(name, row), "sourceDisk": LINK + row["sourceDisk"]}
        shown["labelFingerprint"] = fingerprint(row.get("labels", {}))
        return shown

    async def set_labels(self, request: Any, caller: Caller) -> Any:
        wanted = request.global_set_labels_request_resource
        return self.begin_labels(self.name_of(request), wanted, caller, "")

    def complete(self, name: str, row: Row) -> Row:
        source = short(row.get("sourceDisk", ""))
        if not source:
            raise bad_field("resource.sourceDisk", "", "A source disk is required.")
        if not source.startswith("projects/"):
            source = f"projects/{name.split('/')[1]}/{source}"
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
            "status": "READY",
            "storageBytes": "0",
            "storageBytesStatus": "UP_TO_DATE",
            "downloadBytes": "0",
            "creationSizeBytes": "0",
            "autoCreated": False,
        }
