"""Which types and zones somebody means, and what nodes of them cost: filtered, cheapest first."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tpuctl.catalog.flex_start import flex_start_zones
from tpuctl.catalog.prices import Capacity, Price, node_price
from tpuctl.catalog.tpu import AcceleratorType, accelerator_types, region_of
from tpuctl.catalog.tpu import zones as every_zone

__all__ = [
    "CHARGED",
    "Choice",
    "Offer",
    "PriceOf",
    "cheapest",
    "choose",
    "generations",
    "matching",
    "offers_of",
]

CHARGED: tuple[Capacity, ...] = ("on-demand", "spot", "flex-start")
"""The capacities that have a price of their own: preemptible nodes cost what spot ones do."""

WILD = "*?["


@dataclass(frozen=True)
class Choice:
    """Types and zones; of each type the zones of these that offer it."""

    types: tuple[AcceleratorType, ...]
    zones: tuple[str, ...]

    def zones_of(self, accelerator: AcceleratorType) -> tuple[str, ...]:
        return tuple(zone for zone in accelerator.zones if zone in self.zones)


@dataclass(frozen=True)
class Offer:
    """One node of a type in a zone, and what it costs there an hour."""

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
    """What every condition allows; None asks for nothing. `chips` are the fewest and the most.

    A type that none of the zones asked for offers is left out.
    """
    least, most = chips
    places = tuple(
        zone
        for zone in every_zone()
        if (zones is None or zone in zones) and (regions is None or region_of(zone) in regions)
    )
    found = tuple(
        one
        for one in accelerator_types().values()
        if (types is None or one.name in types)
        and (generations is None or one.generation in generations)
        and one.chips >= least
        and (most is None or one.chips <= most)
        and ((zones is None and regions is None) or any(zone in places for zone in one.zones))
    )
    return Choice(found, places)


def matching(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """The names that a word stands for: itself, or those that fit it with `*`, `?` and `[…]`."""
    names = tuple(known)
    if word in names:
        return (word,)
    if any(sign in word for sign in WILD):
        return tuple(name for name in names if fnmatch.fnmatchcase(name, word))
    return ()


def generations() -> tuple[str, ...]:
    """Of the catalog, oldest first: v2, v3, v4, v5e, …"""
    return tuple(dict.fromkeys(one.generation for one in accelerator_types().values()))


PriceOf = Callable[[AcceleratorType, str, Capacity], Price | None]
"""Who tells the price of one node of a type in a zone."""


def _listed(accelerator: AcceleratorType, zone: str, capacity: Capacity) -> Price | None:
    return node_price(accelerator, zone, capacity=capacity)


def offers_of(
    choice: Choice, capacities: Sequence[Capacity] = CHARGED, price_of: PriceOf = _listed
) -> list[Offer]:
    """Every node of the choice with a known price, the cheapest first.

    Flex-start is among them where it is known to be accepted, as `flex_start_zones` has it.
    """
    found = (
        offer
        for accelerator in choice.types
        for zone in choice.zones_of(accelerator)
        for offer in _priced(accelerator, zone, capacities, price_of)
    )
    return sorted(found, key=_rank)


def cheapest(offers: Iterable[Offer]) -> list[Offer]:
    """Of each type and capacity the cheapest, in the order of the types; zones by name if equal."""
    best: dict[tuple[str, Capacity], Offer] = {}
    for offer in sorted(offers, key=_rank):
        best.setdefault((offer.accelerator.name, offer.capacity), offer)
    names = list(accelerator_types())
    return sorted(
        best.values(),
        key=lambda one: (names.index(one.accelerator.name), CHARGED.index(one.capacity)),
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
    """Cheapest first; of what costs the same, the type with the most chips, then by name."""
    return (
        round(offer.per_hour, 9),
        -offer.accelerator.chips,
        offer.accelerator.name,
        offer.zone,
    )
