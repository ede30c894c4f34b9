"""Full names of disks, snapshots and resource policies that requests refer to."""

from __future__ import annotations

import re

from tpuctl.emulator.state.locations import region_of_name
from tpuctl.emulator.state.resource_names import relative_name


def full_snapshot(project: str, reference: str) -> str:
    """The full name of a snapshot given as a link, a partial link, or a bare name."""
    name = relative_name(reference)
    if name.startswith("projects/"):
        return name
    return f"projects/{project}/global/snapshots/{name.rpartition('/')[2]}"


def full_disk(place: str, reference: str) -> str:
    """The full name of a disk given as a link, a partial link, or a bare name; `place` is
    `projects/P/zones/Z` or `projects/P/regions/R`."""
    name = relative_name(reference)
    if name.startswith("projects/"):
        return name
    if match := re.fullmatch(r"(?:.*/)?((?:zones|regions)/[^/]+/disks/[^/]+)", name):
        return f"projects/{place.split('/')[1]}/{match[1]}"
    return f"{place}/disks/{name.rpartition('/')[2]}"


def full_policy(disk: str, reference: str) -> str:
    """The full name of a resource policy, given as a link or a partial one, for a disk."""
    name = relative_name(reference)
    if name.startswith("projects/"):
        return name
    project = disk.split("/")[1]
    if name.startswith("regions/"):
        return f"projects/{project}/{name}"
    policy = name.rpartition("/")[2]
    return f"projects/{project}/regions/{region_of_name(disk)}/resourcePolicies/{policy}"


def place_of(name: str) -> str:
    """`projects/P/zones/Z` or `projects/P/regions/R` of a full name."""
    return "/".join(name.split("/")[:4])


def is_regional(disk: str) -> bool:
    return disk.split("/")[2] == "regions"
