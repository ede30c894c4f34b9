"""The cost of a stack: a line per charged item, their sum, and the cost over time.

Pure functions of names and numbers; nothing is queried from a cloud. An unpublished price is None,
shown as `unknown`, and never counts as zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from tpuctl.catalog import (
    HOURS_PER_MONTH,
    AcceleratorType,
    Capacity,
    Price,
    Rate,
    accelerator_type,
    address_price,
    disk_price,
    machine_is_offered,
    machine_price,
    machine_type,
    nat_price,
    nat_traffic_price,
    node_price,
    region_of,
    storage_price,
    traffic_price,
)
from tpuctl.units import billed_size, counted, dollars

GB = 2**30  # as Google charges disks, memory, storage and traffic
UNKNOWN = "unknown"


@dataclass(frozen=True)
class CostLine:
    """An item that is charged while it exists."""

    item: str  # "node v3-8 in europe-west4-a"
    per_hour: float | None  # US dollars; None: unknown
    note: str  # "on demand"
    read: str  # the date of the price; empty where none is known

    @property
    def amount(self) -> str:
        """`$8.80/h`, or `unknown`."""
        return UNKNOWN if self.per_hour is None else f"{dollars(self.per_hour)}/h"

    def __str__(self) -> str:
        return f"{self.item}: {self.amount} ({self.note})"


@dataclass(frozen=True)
class Cost:
    """Cost lines and their sum."""

    currency: ClassVar = "USD"  # of all prices in the catalog

    lines: tuple[CostLine, ...]

    @property
    def per_hour(self) -> float | None:
        """The sum of the known prices; None if none is known."""
        return spent(self.lines, 1)

    @property
    def per_month(self) -> float | None:
        """For 730 hours, without sustained use discounts."""
        return spent(self.lines, HOURS_PER_MONTH)

    @property
    def is_complete(self) -> bool:
        """Whether the prices of all lines are known."""
        return not self.unknown

    @property
    def unknown(self) -> tuple[CostLine, ...]:
        """The lines without a price."""
        return tuple(line for line in self.lines if line.per_hour is None)

    @property
    def read(self) -> str:
        """When the prices were read: `mid-2026`."""
        return ", ".join(dict.fromkeys(line.read for line in self.lines if line.read))

    @property
    def amount(self) -> str:
        """`$8.87/h`, `at least $8.87/h` if a price is missing, or `unknown`."""
        if self.per_hour is None:
            return UNKNOWN
        return f"{dollars(self.per_hour, is_complete=self.is_complete)}/h"

    def __str__(self) -> str:
        """All lines, and the sum with the date of the prices."""
        dated = f", prices of {self.read}" if self.read else ""
        return "\n".join([*(str(line) for line in self.lines), f"total: {self.amount}{dated}"])


def spent(lines: Iterable[CostLine], hours: float) -> float | None:
    """The cost of these lines over `hours`, as far as prices are known.

    None if there are lines and none has a known price. For items of different ages, call it for
    each age.
    """
    prices = [line.per_hour for line in lines]
    known_prices = [price for price in prices if price is not None]
    return sum(known_prices) * hours if known_prices or not prices else None


def affordable_seconds(limit: float, per_hour: float) -> float:
    """After how many seconds the cost reaches the limit."""
    return limit / per_hour * 3600


def node_cost(
    accelerator: AcceleratorType | str,
    zone: str,
    *,
    capacity: Capacity = "on-demand",
    nodes: int = 1,
) -> CostLine:
    """Cost of the stack's identical nodes."""
    accelerator_type_ = (
        accelerator_type(accelerator) if isinstance(accelerator, str) else accelerator
    )
    name = accelerator_type_.name if accelerator_type_ else accelerator
    price = node_price(accelerator_type_, zone, capacity=capacity) if accelerator_type_ else None
    return _priced(f"node {name} in {zone}", f"{nodes} nodes {name} in {zone}", price, nodes)


def controller_cost(
    machine: str,
    zone: str,
    *,
    disk_gb: int,
    disk_type: str = "pd-standard",
    spot: bool = False,
) -> tuple[CostLine, CostLine]:
    """Cost of the controller and its boot disk, which is charged even while the machine is
    stopped."""
    machine_type_ = machine_type(machine)
    item = f"controller {machine} in {zone}"
    line = machine_cost(machine, zone, item=item, spot=spot)
    if machine_type_ and not machine_is_offered(machine_type_, region_of(zone)):
        line = CostLine(
            item, None, f"{machine_type_.family} is not offered in {region_of(zone)}", ""
        )
    return line, disk_cost(disk_type, disk_gb, zone, item="controller's disk")


def machine_cost(machine: str, zone: str, *, item: str, spot: bool = False) -> CostLine:
    """Cost of a machine without its disks."""
    machine_type_ = machine_type(machine)
    price = machine_price(machine_type_, region_of(zone), spot=spot) if machine_type_ else None
    return _priced(item, item, price, 1)


def disk_cost(
    disk_type: str, size_gb: int, zone: str, *, count: int = 1, item: str = "data disk"
) -> CostLine:
    """Cost of identical disks, for their full size, used or not."""
    shape = f"{size_gb:,} GB {disk_type}"
    name = f"{item}, {shape}" if count == 1 else f"{count} {item}s, {shape} each"
    return _monthly(name, disk_price(disk_type, region_of(zone)), size_gb * count)


def storage_cost(location: str, bytes_stored: int = 0) -> CostLine:
    """Cost of a bucket's contents. Operations and traffic are charged separately."""
    size = bytes_stored / GB
    holds = billed_size(bytes_stored) if bytes_stored else "empty"
    return _monthly(f"bucket in {location.lower()}, {holds}", storage_price(location), size)


def address_cost(count: int = 1, *, spot: bool = False) -> CostLine:
    """Cost of external IPv4 addresses in use; `spot`: by spot machines."""
    return _priced(
        "external address", f"{count} external addresses", address_price(spot=spot), count
    )


def nat_cost(machines: int = 0) -> CostLine:
    """Cost of a Cloud NAT with one address, which is enough for a thousand machines, and of those
    machines that use it."""
    used, address, traffic = nat_price(machines), address_price(), nat_traffic_price()
    item = f"Cloud NAT for {counted(machines, 'machine')}" if machines else "Cloud NAT"
    more = "" if machines else f", each machine {dollars(nat_price(1).per_hour)}/h"
    note = f"with its address{more}; traffic {traffic}"
    return CostLine(item, used.per_hour + address.per_hour, note, used.read)


def with_addresses(line: CostLine, count: int, *, spot: bool) -> CostLine:
    """Add the cost of external addresses to a machine's, if its price is known."""
    if line.per_hour is None or not count:
        return line
    each = address_price(spot=spot)
    several = "its address" if count == 1 else f"its {count} addresses"
    per_hour = line.per_hour + count * each.per_hour
    return replace(line, per_hour=per_hour, note=f"{line.note}, with {several}")


def egress_price(from_region: str, to_region: str) -> Rate | None:
    """Price of a GB that a machine in `to_region` reads from a bucket in `from_region`.

    0 means free, None unknown. `str()` of it: `$0.05 per GB`.
    """
    return traffic_price(from_region, to_region)


def _priced(singular: str, plural: str, price: Price | None, count: int) -> CostLine:
    item = singular if count == 1 else plural
    if price is None:
        return CostLine(item, None, "no price is published", "")
    each = "" if count == 1 else f", {dollars(price.per_hour)}/h each"
    return CostLine(item, price.per_hour * count, f"{price.kind}{each}", price.read)


def _monthly(item: str, rate: Rate | None, size_gb: float) -> CostLine:
    if rate is None:
        return CostLine(item, None, "no price is published", "")
    general = ", same price for all regions" if rate.is_general else ""
    return CostLine(item, rate.amount * size_gb / HOURS_PER_MONTH, f"{rate}{general}", rate.read)
