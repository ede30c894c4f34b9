"""Snapshots of disks. Their content is not emulated."""

from __future__ import annotations

from tpuctl.emulator.compute.core.collection import LabeledCollection, Row
from tpuctl.emulator.compute.core.context import SNAPSHOTS
from tpuctl.emulator.compute.core.errors import bad_field, not_found
from tpuctl.emulator.compute.disks.content import BOOT_IMAGE, content_of_disk
from tpuctl.emulator.compute.disks.references import full_disk
from tpuctl.emulator.state.locations import region_of_name


class Snapshots(LabeledCollection):
    """Snapshots of a project."""

    kind, message, plural, field = SNAPSHOTS, "Snapshot", "snapshots", "snapshot"
    links, labels_field = ("sourceDisk",), "global_set_labels_request_resource"
    internal = (BOOT_IMAGE,)

    def complete(self, name: str, row: Row) -> Row:
        if not row.get("sourceDisk"):
            raise bad_field("resource.sourceDisk", "", "A source disk is required.")
        project = f"projects/{name.split('/')[1]}"
        disk = content_of_disk(self.context, project, row["sourceDisk"])
        if disk is None:
            raise not_found(full_disk(project, row["sourceDisk"]))
        return {
            "snapshotType": "STANDARD",
            "storageLocations": [region_of_name(disk.name)],
            **disk.copied_to(row),
            "diskSizeGb": disk.row["sizeGb"],
            "status": "READY",
            "storageBytes": "0",
            "storageBytesStatus": "UP_TO_DATE",
            "downloadBytes": "0",
            "creationSizeBytes": "0",
            "autoCreated": False,
        }
