"""What the API lists in each zone, held against what the catalog knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["Comparison", "Listed"]


@dataclass(frozen=True)
class Listed:
    """Names by zone, as the API listed them; and the zones that did not answer, with the reason."""

    by_zone: Mapping[str, frozenset[str]]
    unread: Mapping[str, str] = field(default_factory=dict)

    def only(self, is_meant: Callable[[str], bool]) -> Listed:
        """Without the names that were not asked for."""
        return Listed(
            {zone: frozenset(filter(is_meant, names)) for zone, names in self.by_zone.items()},
            self.unread,
        )


@dataclass(frozen=True)
class Comparison:
    """The catalog's names by zone beside the API's. Zones that did not answer are left out."""

    known: Mapping[str, frozenset[str]]
    listed: Listed

    @classmethod
    def of(cls, known: Mapping[str, Iterable[str]], listed: Listed) -> Comparison:
        return cls(
            {zone: frozenset(known.get(zone, ())) for zone in listed.by_zone},
            listed,
        )

    @property
    def zones(self) -> tuple[str, ...]:
        """Those that answered."""
        return tuple(self.listed.by_zone)

    @property
    def new(self) -> list[tuple[str, str]]:
        """Name and zone of what the API lists and the catalog lacks."""
        return sorted(
            (name, zone)
            for zone, names in self.listed.by_zone.items()
            for name in names - self.known[zone]
        )

    @property
    def gone(self) -> list[tuple[str, str]]:
        """Name and zone of what the catalog has and the API does not list."""
        return sorted(
            (name, zone)
            for zone, names in self.known.items()
            for name in names - self.listed.by_zone[zone]
        )

    def zones_of(self, name: str) -> tuple[str, ...]:
        """Where the API lists it."""
        return tuple(zone for zone, names in self.listed.by_zone.items() if name in names)

    def of_name(self, name: str) -> str:
        """How a name fares, in a word: `same`, `new`, `gone`, or `+2 -1` zones."""
        here = set(self.zones_of(name))
        before = {zone for zone, names in self.known.items() if name in names}
        return _word(before, here)

    def of_zone(self, zone: str) -> str:
        """How a zone fares: `same`, `new`, `gone`, `+2 -1` names, or `?` without an answer."""
        if zone not in self.listed.by_zone:
            return "?"
        return _word(self.known[zone], self.listed.by_zone[zone])


def _word(before: Iterable[str], now: Iterable[str]) -> str:
    old, there = set(before), set(now)
    if old == there:
        return "same"
    if not old or not there:
        return "new" if there else "gone"
    counts = (("+", len(there - old)), ("-", len(old - there)))
    return " ".join(f"{sign}{count}" for sign, count in counts if count)
