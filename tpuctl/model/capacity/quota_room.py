"""How many nodes of a type fit in a project's quota, by zone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tpuctl.catalog import (
    AcceleratorType,
    Api,
    QuotaLimit,
    apis_of,
    quota_limits,
    region_of,
    zones_of,
)
from tpuctl.model.capacity.quota import ADDRESSES, Region, amount_used
from tpuctl.model.status.inventory import InventoryItem

UNLIMITED = float("inf")


@dataclass(frozen=True)
class Room:
    """One zone at one API, on demand or spot. None means unknown."""

    zone: str
    capacity: Literal["on-demand", "spot"]
    limit: QuotaLimit  # of the zone, or of its region at Compute Engine
    takes: int  # by one node
    allowed: float | None  # by the limit; infinite without a bound
    used: float
    nodes: int | None  # that still fit; None too where nothing bounds them
    bound: str  # the limiting factor: "zone", "region", "addresses"; empty for nothing

    @property
    def place(self) -> str:
        """The zone or region of its limit."""
        return self.zone if self.limit.scope == "zone" else region_of(self.zone)

    @property
    def preferred(self) -> int:
        """The limit to request so that one more node fits in the zone."""
        limit = 0 if self.allowed is None or self.allowed == UNLIMITED else int(self.allowed)
        return max(limit + self.takes if self.nodes else limit, int(self.used) + self.takes)


def rooms_of(
    accelerator: AcceleratorType,
    zones: Iterable[str],
    items: Iterable[InventoryItem],
    allowed: Mapping[tuple[str, str], float | None],
    regions: Mapping[str, Region],
) -> tuple[Room, ...]:
    """Zones with most room first.

    `items` has every node and request of the project; `allowed` the limits of TPUs by id and place,
    None where there is no bound; `regions` the quota of Compute Engine, as far as it is known.
    Nodes are taken to have an external address for each worker, as they have by default.
    """
    all_items = list(items)
    rooms = [
        _room(accelerator, zone, spot, api, all_items, allowed, regions.get(region_of(zone)))
        for zone in zones
        for api in apis_of(accelerator)
        if zone in zones_of(accelerator, api)
        for spot in (False, True)
    ]
    return tuple(sorted(rooms, key=_rank))


def _rank(room: Room) -> tuple[float, str, str]:
    """Sort key: most room first, unknown last."""
    if room.nodes is not None:
        return (-room.nodes, room.zone, room.capacity)
    return (-UNLIMITED if room.allowed == UNLIMITED else 1, room.zone, room.capacity)


def _room(
    accelerator: AcceleratorType,
    zone: str,
    spot: bool,
    api: Api,
    items: list[InventoryItem],
    allowed: Mapping[tuple[str, str], float | None],
    region: Region | None,
) -> Room:
    limits = quota_limits(accelerator, spot, api)
    rows = [_limit_row(limit, zone, items, allowed) for limit in limits]
    fits: list[tuple[float, str]] = [
        ((bound - used) // limit.amount(accelerator), limit.scope)
        for limit, (bound, used) in zip(limits, rows, strict=True)
        if bound is not None and bound != UNLIMITED
    ]
    if region is not None and ADDRESSES in region.quotas:
        most, in_use = region.quotas[ADDRESSES]
        fits.append(((most - in_use) // accelerator.workers, "addresses"))
    bound, used = rows[0]
    least, by = min(fits, key=lambda fit: fit[0], default=(UNLIMITED, ""))
    nodes = None if bound is None or least == UNLIMITED else max(0, int(least))
    return Room(
        zone,
        "spot" if spot else "on-demand",
        limits[0],
        limits[0].amount(accelerator),
        bound,
        used,
        nodes,
        by if nodes is not None else "",
    )


def _limit_row(
    limit: QuotaLimit,
    zone: str,
    items: list[InventoryItem],
    allowed: Mapping[tuple[str, str], float | None],
) -> tuple[float | None, float]:
    """What a limit allows where the zone is, and what is used of it."""
    location = zone if limit.scope == "zone" else region_of(zone)
    used = sum(
        amount_used(item, limit) for item in items if location in (item.zone, region_of(item.zone))
    )
    return _bound(allowed, (limit.id, location)), used


def _bound(allowed: Mapping[tuple[str, str], float | None], key: tuple[str, str]) -> float | None:
    """The limit; infinite if unlimited, None if unknown."""
    if key not in allowed:
        return None
    limit = allowed[key]
    return UNLIMITED if limit is None else limit
