"""Selects TPU types and zones, and lists what their nodes cost, cheapest first."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tpuctl.catalog.compute_tpu import flex_start_zones, zones_of
from tpuctl.catalog.prices import Capacity, Price, node_price
from tpuctl.catalog.tpu import AcceleratorType, accelerator_types, region_of, runtime_for
from tpuctl.catalog.tpu import zones as every_zone

__all__ = [
    "PRICED_CAPACITIES",
    "Choice",
    "Offer",
    "PriceOf",
    "cheapest",
    "cheapest_to_train",
    "cheapest_zones",
    "choose",
    "generations",
    "matching",
    "offers_of",
]

PRICED_CAPACITIES: tuple[Capacity, ...] = ("on-demand", "spot", "flex-start")
"""Capacities with separate prices; preemptible nodes cost the same as spot nodes."""

WILDCARDS = "*?["


@dataclass(frozen=True)
class Choice:
    """Selected types and zones."""

    types: tuple[AcceleratorType, ...]
    zones: tuple[str, ...]

    def zones_of(self, accelerator: AcceleratorType) -> tuple[str, ...]:
        return tuple(zone for zone in zones_of(accelerator) if zone in self.zones)


@dataclass(frozen=True)
class Offer:
    """One node of a type in a zone, with its hourly price."""

    accelerator: AcceleratorType
    zone: str
    price: Price

    @property
    def capacity(self) -> Capacity:
        return self.price.capacity

    @property
    def per_hour(self) -> float:
        return self.price.per_hour

    @property
    def per_chip(self) -> float:
        return self.price.per_hour / self.accelerator.chips


def choose(
    *,
    types: Collection[str] | None = None,
    generations: Collection[str] | None = None,
    zones: Collection[str] | None = None,
    regions: Collection[str] | None = None,
    chips: tuple[int, int | None] = (0, None),
) -> Choice:
    """Types and zones that meet every condition; None means any. `chips` is (minimum, maximum).

    A type that none of the selected zones offers is left out.
    """
    min_chips, max_chips = chips
    allowed_zones = tuple(
        zone
        for zone in every_zone()
        if (zones is None or zone in zones) and (regions is None or region_of(zone) in regions)
    )
    accelerators = tuple(
        accelerator
        for accelerator in accelerator_types().values()
        if (types is None or accelerator.name in types)
        and (generations is None or accelerator.generation in generations)
        and accelerator.chips >= min_chips
        and (max_chips is None or accelerator.chips <= max_chips)
        and (
            (zones is None and regions is None)
            or any(zone in allowed_zones for zone in zones_of(accelerator))
        )
    )
    return Choice(accelerators, allowed_zones)


def matching(pattern: str, candidates: Iterable[str]) -> tuple[str, ...]:
    """Candidates equal to the pattern, or matching its wildcards `*`, `?` and `[…]`."""
    names = tuple(candidates)
    if pattern in names:
        return (pattern,)
    if any(sign in pattern for sign in WILDCARDS):
        return tuple(name for name in names if fnmatch.fnmatchcase(name, pattern))
    return ()


def generations() -> tuple[str, ...]:
    """All generations, oldest first: v2, v3, v4, v5e, …"""
    return tuple(
        dict.fromkeys(accelerator.generation for accelerator in accelerator_types().values())
    )


def cheapest_to_train(
    zones: Collection[str] | None = None, capacity: Capacity = "on-demand"
) -> Offer | None:
    """The cheapest node that trains with any framework, in these zones or anywhere.

    It is of the Cloud TPU API, and of a type that TensorFlow supports too. None if there is none.
    """
    for offer in offers_of(choose(zones=zones), (capacity,)):
        runtime = runtime_for(offer.accelerator)
        has_tensorflow = runtime is not None and runtime.tensorflow is not None
        if has_tensorflow and offer.zone in zones_of(offer.accelerator, "tpu"):
            return offer
    return None


def cheapest_zones(accelerator: AcceleratorType, capacity: Capacity) -> tuple[str, ...]:
    """The zones of a region where a node of this type costs least.

    They are in one region, as a stack's bucket is: one zone may have capacity if another has none.
    Where no price is known, all zones of the first region.
    """
    zones = zones_of(accelerator)
    offers = offers_of(Choice((accelerator,), zones), (capacity,))
    if offers:
        zones = tuple(offer.zone for offer in offers if offer.per_hour == offers[0].per_hour)
    return tuple(zone for zone in zones if region_of(zone) == region_of(zones[0]))


PriceOf = Callable[[AcceleratorType, str, Capacity], Price | None]
"""Returns the price of one node of a type in a zone."""


def _listed(accelerator: AcceleratorType, zone: str, capacity: Capacity) -> Price | None:
    return node_price(accelerator, zone, capacity=capacity)


def offers_of(
    choice: Choice, capacities: Sequence[Capacity] = PRICED_CAPACITIES, price_of: PriceOf = _listed
) -> list[Offer]:
    """Offers with a known price, cheapest first.

    Flex-start is included only in the zones of `flex_start_zones`.
    """
    offers = (
        offer
        for accelerator in choice.types
        for zone in choice.zones_of(accelerator)
        for offer in _priced(accelerator, zone, capacities, price_of)
    )
    return sorted(offers, key=_rank)


def cheapest(offers: Iterable[Offer]) -> list[Offer]:
    """The cheapest offer for each type and capacity, in catalog order; ties go to the first
    zone."""
    best: dict[tuple[str, Capacity], Offer] = {}
    for offer in sorted(offers, key=_rank):
        best.setdefault((offer.accelerator.name, offer.capacity), offer)
    names = list(accelerator_types())
    return sorted(
        best.values(),
        key=lambda offer: (
            names.index(offer.accelerator.name),
            PRICED_CAPACITIES.index(offer.capacity),
        ),
    )


def _priced(
    accelerator: AcceleratorType, zone: str, capacities: Sequence[Capacity], price_of: PriceOf
) -> Iterator[Offer]:
    for capacity in capacities:
        if capacity == "flex-start" and zone not in flex_start_zones(accelerator):
            continue
        price = price_of(accelerator, zone, capacity)
        if price is not None:
            yield Offer(accelerator, zone, price)


def _rank(offer: Offer) -> tuple[float, int, str, str]:
    """Sort key: cheapest first, then most chips, then by name."""
    return (
        round(offer.per_hour, 9),
        -offer.accelerator.chips,
        offer.accelerator.name,
        offer.zone,
    )
