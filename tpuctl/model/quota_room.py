"""How many nodes of a type fit in a project's quota, by zone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from tpuctl.catalog import AcceleratorType, quota_limits, region_of
from tpuctl.model.inventory import InventoryItem
from tpuctl.model.quota import Region, amount_used

__all__ = ["Room", "rooms_of"]

ADDRESSES = "IN_USE_ADDRESSES"
UNLIMITED = float("inf")


@dataclass(frozen=True)
class Room:
    """One zone, on demand or spot. None means unknown."""

    zone: str
    capacity: Literal["on-demand", "spot"]
    limit: str  # as refusals name it; of the zone
    unit: str
    takes: int  # by one node
    allowed: float | None  # in the zone; infinite without a bound
    used: float
    nodes: int | None  # that still fit; None too where nothing bounds them
    bound: str  # the limiting factor: "zone", "region", "addresses"; empty for nothing

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

    `found` has every node and request of the project; `allowed` the limits of Cloud TPU by id and
    place, None where there is no bound; `regions` what Compute Engine tells, as far as it does.
    Nodes are taken to have an external address for each worker, as they have by default.
    """
    all_items = list(items)
    rooms = [
        _room(accelerator, zone, spot, all_items, allowed, regions.get(region_of(zone)))
        for zone in zones
        for spot in (False, True)
        if quota_limits(accelerator, spot)
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
    items: list[InventoryItem],
    allowed: Mapping[tuple[str, str], float | None],
    region: Region | None,
) -> Room:
    fits: list[tuple[float, str]] = []
    is_known = True
    of_zone: tuple[str, str, int, float | None, float] | None = None
    for limit in quota_limits(accelerator, spot):
        location = zone if limit.scope == "zone" else region_of(zone)
        used: float = sum(
            amount_used(item, limit.id)
            for item in items
            if location in (item.zone, region_of(item.zone))
        )
        takes = limit.amount(accelerator)
        bound = _bound(allowed, (limit.id, location))
        if limit.scope == "zone":
            of_zone = (limit.id, limit.unit, takes, bound, used)
            is_known = bound is not None
        if bound is not None and bound != UNLIMITED:
            fits.append(((bound - used) // takes, limit.scope))
    if region is not None and ADDRESSES in region.quotas:
        most, in_use = region.quotas[ADDRESSES]
        fits.append(((most - in_use) // accelerator.workers, "addresses"))
    assert of_zone is not None
    least, by = min(fits, key=lambda fit: fit[0], default=(UNLIMITED, ""))
    nodes = None if not is_known or least == UNLIMITED else max(0, int(least))
    name, unit, takes, bound, used = of_zone
    capacity: Literal["on-demand", "spot"] = "spot" if spot else "on-demand"
    return Room(
        zone, capacity, name, unit, takes, bound, used, nodes, by if nodes is not None else ""
    )


def _bound(allowed: Mapping[tuple[str, str], float | None], key: tuple[str, str]) -> float | None:
    """The limit; infinite if unlimited, None if unknown."""
    if key not in allowed:
        return None
    limit = allowed[key]
    return UNLIMITED if limit is None else limit
