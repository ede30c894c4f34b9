"""Compute Engine machine types, and prices of machines, disks, storage, addresses, NAT and traffic.

The data is in `compute.toml`. None means that no price is published, never that something is free.
Prices are list prices, without sustained or committed use discounts.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from tpuctl.catalog.prices import Capacity, Price, Rate

__all__ = [
    "MachineType",
    "address_price",
    "disk_price",
    "disk_types",
    "machine_is_offered",
    "machine_price",
    "machine_type",
    "machine_types",
    "nat_price",
    "nat_traffic_price",
    "storage_locations",
    "storage_price",
    "traffic_price",
]

LISTED_DISKS = ("pd-standard", "pd-balanced", "pd-ssd")  # columns of [disks]
MONTHLY = "GB per month"


@dataclass(frozen=True)
class MachineType:
    """A machine type of Compute Engine, as `machineTypes` names it."""

    name: str
    family: str
    vcpus: int
    memory_gb: float
    charged_vcpus: float  # less than vcpus for shared-core types


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("compute.toml").read_text("utf-8"))


def _read() -> str:
    return str(_data()["read"])


@cache
def machine_types() -> Mapping[str, MachineType]:
    """Machine types for controllers, by name: families e2, n1, n2, n2d up to 32 vCPUs."""
    types = {}
    for name, (vcpus, charged, memory) in _data()["shared"].items():
        types[name] = MachineType(name, name.partition("-")[0], vcpus, memory, charged)
    for family, shapes in _data()["families"].items():
        for shape, (memory, sizes) in shapes.items():
            for vcpus in sizes:
                name = f"{family}-{shape}-{vcpus}"
                types[name] = MachineType(name, family, vcpus, round(memory * vcpus, 3), vcpus)
    return types


def machine_type(name: str) -> MachineType | None:
    return machine_types().get(name)


def machine_is_offered(machine: MachineType, region: str) -> bool:
    """Whether the region offers the type's family; False only if public lists show that it does
    not."""
    return region not in _data()["absent"].get(machine.family, ())


def machine_price(machine: MachineType, region: str, *, spot: bool = False) -> Price | None:
    """Price of a running machine without its disks; None also where it is not offered."""
    rates = _data()["machines"][machine.family].get(region)
    if rates is None or not machine_is_offered(machine, region):
        return None
    vcpu, memory = rates[2:] if spot else rates[:2]
    per_hour = machine.charged_vcpus * vcpu + machine.memory_gb * memory
    return Price(round(per_hour, 10), _read(), "spot" if spot else "on-demand")


def disk_types() -> tuple[str, ...]:
    return (*LISTED_DISKS, *_data()["disks_in_general"])


def disk_price(disk_type: str, region: str) -> Rate | None:
    """Price of a provisioned GB per month, without Hyperdisk's extra IOPS and throughput."""
    general = _data()["disks_in_general"].get(disk_type)
    rates = _data()["disks"].get(region)
    if rates is None:
        return None
    if general is not None:
        return Rate(general, MONTHLY, _read(), is_general=True)
    if disk_type not in LISTED_DISKS:
        return None
    return Rate(rates[LISTED_DISKS.index(disk_type)], MONTHLY, _read())


def storage_locations() -> tuple[str, ...]:
    """Bucket locations with a known price: regions, then dual- and multi-regions."""
    return tuple(_data()["storage"])


def storage_price(location: str) -> Rate | None:
    """Price of a GB in the Standard class per month, in a bucket at this location."""
    amount = _data()["storage"].get(location.lower())
    return Rate(amount, MONTHLY, _read()) if amount is not None else None


def address_price(*, spot: bool = False) -> Price:
    """Price of an external IPv4 address in use."""
    capacity: Capacity = "spot" if spot else "on-demand"
    return Price(_data()["addresses"][capacity], _read(), capacity)


def nat_price(machines: int) -> Price:
    """Price of Cloud NAT without its addresses, for a number of machines that use it."""
    table = _data()["nat"]
    return Price(min(machines * table["machine"], table["most"]), _read())


def nat_traffic_price() -> Rate:
    """Price of a GB through Cloud NAT, in both directions."""
    return Rate(_data()["nat"]["traffic"], "GB", _read(), is_general=True)


def traffic_price(origin: str, destination: str) -> Rate | None:
    """Price of a GB that machines or buckets at `destination` read from a bucket at `origin`.

    Locations are regions, dual-regions or multi-regions; `destination` may be `internet`. Traffic
    within a region is free, as is traffic from a dual-region to either of its regions. A region is
    not the same location as the multi-region that contains it.
    """
    origin, destination = origin.lower(), destination.lower()
    if origin == destination or destination in _data()["dual_regions"].get(origin, ()):
        return Rate(0.0, "GB", _read())
    table = _data()["traffic"]
    if destination == "internet":
        return Rate(table["internet"], "GB", _read(), is_general=True)
    origin_continent, destination_continent = _continent(origin), _continent(destination)
    if origin_continent is None or destination_continent is None:
        return None
    amount = table[origin_continent][table["columns"].index(destination_continent)]
    return Rate(amount, "GB", _read()) if amount else None


def _continent(location: str) -> str | None:
    prefixes = [prefix for prefix in _data()["continents"] if location.startswith(prefix)]
    return str(_data()["continents"][max(prefixes, key=len)]) if prefixes else None
