"""Compares what the API lists in each zone with the catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class NameInZone(NamedTuple):
    name: str
    zone: str


@dataclass(frozen=True)
class Listed:
    """Names by zone, as listed by the API; and zones that failed, with the reason."""

    by_zone: Mapping[str, frozenset[str]]
    unread: Mapping[str, str] = field(default_factory=dict)

    def filter_names(self, predicate: Callable[[str], bool]) -> Listed:
        """Only the names that match the predicate."""
        return Listed(
            {zone: frozenset(filter(predicate, names)) for zone, names in self.by_zone.items()},
            self.unread,
        )


@dataclass(frozen=True)
class Comparison:
    """The catalog's and the API's names by zone, without zones that failed."""

    catalog: Mapping[str, frozenset[str]]
    listed: Listed

    @classmethod
    def of(cls, catalog: Mapping[str, Iterable[str]], listed: Listed) -> Comparison:
        return cls(
            {zone: frozenset(catalog.get(zone, ())) for zone in listed.by_zone},
            listed,
        )

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that the API listed."""
        return tuple(self.listed.by_zone)

    @property
    def new(self) -> list[NameInZone]:
        """Those in the API but not in the catalog."""
        return sorted(
            NameInZone(name, zone)
            for zone, names in self.listed.by_zone.items()
            for name in names - self.catalog[zone]
        )

    @property
    def removed(self) -> list[NameInZone]:
        """Those in the catalog but not in the API."""
        return sorted(
            NameInZone(name, zone)
            for zone, names in self.catalog.items()
            for name in names - self.listed.by_zone[zone]
        )

    def zones_of(self, name: str) -> tuple[str, ...]:
        """The zones where the API lists the name."""
        return tuple(zone for zone, names in self.listed.by_zone.items() if name in names)

    def of_name(self, name: str) -> str:
        """The difference for a name: `same`, `new`, `removed`, or `+2 -1` zones."""
        listed_zones = set(self.zones_of(name))
        catalog_zones = {zone for zone, names in self.catalog.items() if name in names}
        return _summary(catalog_zones, listed_zones)

    def of_zone(self, zone: str) -> str:
        """The difference for a zone: `same`, `new`, `removed`, `+2 -1` names, `?` if it failed."""
        if zone not in self.listed.by_zone:
            return "?"
        return _summary(self.catalog[zone], self.listed.by_zone[zone])


def _summary(before: Iterable[str], now: Iterable[str]) -> str:
    old, new = set(before), set(now)
    if old == new:
        return "same"
    if not old or not new:
        return "new" if new else "removed"
    counts = (("+", len(new - old)), ("-", len(old - new)))
    return " ".join(f"{sign}{count}" for sign, count in counts if count)
