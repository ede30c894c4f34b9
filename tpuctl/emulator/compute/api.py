"""Compute Engine, as the core knows it."""

from __future__ import annotations

import re

from tpuctl.emulator.compute.access import ACCESS
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

__all__ = ["API", "COLLECTIONS"]

# Those of which there is something.
COLLECTIONS = (
    "Addresses",
    "DiskTypes",
    "Disks",
    "Firewalls",
    "GlobalAddresses",
    "GlobalOperations",
    "ImageFamilyViews",
    "Images",
    "Instances",
    "MachineTypes",
    "Networks",
    "Projects",
    "RegionOperations",
    "Regions",
    "Routes",
    "Snapshots",
    "Subnetworks",
    "ZoneOperations",
    "Zones",
)
_PATH = re.compile(r"(?:/compute/(?:v1|beta|alpha))?/projects/[^/]+(?:/|$)")


def _surface(client: str) -> Surface:
    """Of the collection that this client is for, as `GlobalAddresses`."""
    module = re.sub(r"(?<!^)([A-Z])", r"_\1", client).lower()
    return Surface(
        f"google.cloud.compute.v1.{client}",
        f"google.cloud.compute_v1.services.{module}",
        client,
        "compute",
        family="legacy",
        # Images are read in Google's public projects too: their handler looks who is asked.
        api="" if client in ("Images", "ImageFamilyViews") else ACCESS.host,
    )


def _surface_at(path: str) -> Surface | None:
    """The collection that a path is about, by the client's module names."""
    if not _PATH.match(path):
        return None
    from tpuctl.emulator.compute.messages import collection_of

    found = collection_of(path)
    return None if found is None else _surface(found[1])


_PACES = {
    "compute.networks": (0.6, 30.0),  # guess
    "compute.firewalls": (0.3, 10.0),  # guess
    "compute.metadata": (0.3, 8.0),  # guess
    "compute.subnetworks": (0.4, 15.0),  # guess
    "compute.addresses": (0.3, 8.0),  # guess
    "compute.globalAddresses": (0.3, 8.0),  # guess
    "compute.disks": (0.3, 5.0),  # guess
    "compute.snapshots": (0.3, 8.0),  # guess
    "compute.instances": (0.2, 4.0),  # labels and such: guess
    "compute.instances.insert": (1.0, 45.0),  # "Compute VM 30-60 s" in public reports
    "compute.instances.bulkInsert": (0.0, 0.0),  # takes as long as its insertions
    "compute.instances.refused": (0.4, 20.0),  # 7 s and 96 s in two public reports
    "compute.instances.delete": (0.6, 60.0),  # guess
    "compute.instances.stop": (0.6, 60.0),  # guess
    "compute.instances.start": (0.8, 30.0),  # guess
    "compute.instances.reset": (0.6, 10.0),  # guess
    "compute.instances.preempted": (0.0, 0.0),  # its notice is the time it takes
    "compute.instances.nothing": (0.1, 2.0),  # guess
    "compute.instances.setMetadata": (0.2, 5.0),  # guess
    "compute.instances.setTags": (0.2, 5.0),  # guess
    "compute.instances.attachDisk": (0.3, 8.0),  # guess
    "compute.instances.detachDisk": (0.3, 8.0),  # guess
}

API = GoogleApi(
    access=ACCESS,
    services={"compute": "tpuctl.emulator.compute.service:ComputeService"},
    surfaces=tuple(map(_surface, COLLECTIONS)),
    surface_at=_surface_at,
    legacy_paths=rf"/compute/|{_PATH.pattern}",
    aliases=((r"/compute/(?:beta|alpha)(?=/projects/)", "/compute/v1"),),  # gcloud beta and alpha
    with_machines={"compute.instances": "compute"},
    paces=_PACES,
)
