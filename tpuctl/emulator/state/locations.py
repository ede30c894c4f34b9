"""Compute Engine locations: regions, zones, and address ranges of auto mode networks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from tpuctl import catalog
from tpuctl.emulator.state.errors import invalid

# Zone letters, and the second octet of the region's range 10.N.0.0/20 in auto mode networks
# (cloud.google.com/vpc/docs/subnets, "Auto mode IPv4 subnet ranges"). The range of us-central2,
# which only TPUs have, is not published: a guess.
_REGIONS: Mapping[str, tuple[str, int]] = {
    "africa-south1": ("abc", 218),
    "asia-east1": ("abc", 140),
    "asia-east2": ("abc", 170),
    "asia-northeast1": ("abc", 146),
    "asia-northeast2": ("abc", 174),
    "asia-northeast3": ("abc", 178),
    "asia-south1": ("abc", 160),
    "asia-south2": ("abc", 190),
    "asia-southeast1": ("abc", 148),
    "asia-southeast2": ("abc", 184),
    "australia-southeast1": ("abc", 152),
    "australia-southeast2": ("abc", 192),
    "europe-central2": ("abc", 186),
    "europe-north1": ("abc", 166),
    "europe-north2": ("abc", 226),
    "europe-southwest1": ("abc", 204),
    "europe-west1": ("bcd", 132),
    "europe-west10": ("abc", 214),
    "europe-west12": ("abc", 210),
    "europe-west2": ("abc", 154),
    "europe-west3": ("abc", 156),
    "europe-west4": ("abc", 164),
    "europe-west6": ("abc", 172),
    "europe-west8": ("abc", 198),
    "europe-west9": ("abc", 200),
    "me-central1": ("abc", 212),
    "me-west1": ("abc", 208),
    "northamerica-northeast1": ("abc", 162),
    "northamerica-northeast2": ("abc", 188),
    "northamerica-south1": ("abc", 224),
    "southamerica-east1": ("abc", 158),
    "southamerica-west1": ("abc", 194),
    "us-central1": ("abcf", 128),
    "us-central2": ("b", 130),
    "us-east1": ("bcd", 142),
    "us-east4": ("abc", 150),
    "us-east5": ("abc", 202),
    "us-south1": ("abc", 206),
    "us-west1": ("abc", 138),
    "us-west2": ("abc", 168),
    "us-west3": ("abc", 180),
    "us-west4": ("abc", 182),
}
_FIRST_FREE = 232  # for regions of the catalog that are not listed above


def region_of(zone: str) -> str:
    return catalog.region_of(zone)


def region_of_name(name: str) -> str:
    """The region of a zonal or regional resource, by its full name."""
    _, _, scope, location, *_ = name.split("/")
    return location if scope == "regions" else region_of(location)


@cache
def zones() -> tuple[str, ...]:
    """Every zone: Google's general ones and all with TPUs."""
    common = {
        f"{region}-{letter}" for region, (letters, _) in _REGIONS.items() for letter in letters
    }
    return tuple(sorted(common.union(catalog.zones())))


@cache
def regions() -> tuple[str, ...]:
    return tuple(sorted({region_of(zone) for zone in zones()}))


@cache
def auto_range(region: str) -> str:
    """The range of a region's subnetwork in every auto mode network."""
    if region in _REGIONS:
        return f"10.{_REGIONS[region][1]}.0.0/20"
    others = [name for name in regions() if name not in _REGIONS]
    return f"10.{_FIRST_FREE + others.index(region)}.0.0/20"


def check_zone(zone: str) -> str:
    """The zone, which must exist."""
    return _check("zone", zone, zones())


def check_region(region: str) -> str:
    """The region, which must exist."""
    return _check("region", region, regions())


def _check(field: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise invalid(f"Invalid value for field '{field}': '{value}'. Unknown {field}.")
    return value
