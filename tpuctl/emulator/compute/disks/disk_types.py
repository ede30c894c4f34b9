"""Types of disks, zonal and regional."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tpuctl.emulator.compute.core.collection import FixedCollection, Row

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
# docs.cloud.google.com/compute/docs/disks/about-regional-persistent-disk
REGIONAL_TYPES = ("pd-balanced", "pd-ssd", "pd-standard")


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
