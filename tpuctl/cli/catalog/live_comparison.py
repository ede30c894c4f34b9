"""`--live` for types, zones and runtimes: the API is asked, and differences are told plainly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.cli.catalog.selection import asked_live, places

if TYPE_CHECKING:
    from tpuctl.cli.state import State
    from tpuctl.flows.live_catalog import CatalogList
    from tpuctl.model.live_catalog import Comparison

__all__ = ["Live", "ask"]

SHOWN = 10  # differences that are told one by one


@dataclass(frozen=True)
class Live:
    """What the API said, beside the catalog."""

    project: str
    compared: Comparison

    @property
    def data(self) -> dict[str, Any]:
        def pairs(found: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
            return [{"name": name, "zone": zone} for name, zone in found]

        return {
            "project": self.project,
            "zones": list(self.compared.zones),
            "unavailable": dict(self.compared.listed.unread),
            "new": pairs(self.compared.new),
            "removed": pairs(self.compared.removed),
        }

    def sentences(self) -> list[str]:
        """What differs, in words."""
        compared = self.compared
        where = f"{len(compared.zones)} zone{'s' if len(compared.zones) != 1 else ''}"
        told = [f"Asked for project {self.project} in {where}."]
        if not compared.new and not compared.removed:
            told[0] += " All is as in the catalog."
        for word, found in (("New", compared.new), ("Removed", compared.removed)):
            told += (f"{word}: {text}" for text in _by_name(found))
        told += (f"No answer from {zone}: {why}." for zone, why in compared.listed.unread.items())
        return told


def _by_name(found: Sequence[tuple[str, str]]) -> list[str]:
    zones: dict[str, list[str]] = {}
    for name, zone in found:
        zones.setdefault(name, []).append(zone)
    lines = [f"{name} in {', '.join(where)}" for name, where in zones.items()]
    if len(lines) > SHOWN:
        rest = len(lines) - SHOWN
        lines = [*lines[:SHOWN], f"and {rest} more; --json has them all"]
    return lines


def ask(
    state: State,
    project: str,
    what: CatalogList,
    known: Callable[[str], Iterable[str]],
    is_meant: Callable[[str], bool],
    *,
    zone: str = "",
    region: str = "",
) -> Live:
    """Ask each zone that the options name, or all: also those that the catalog does not know.

    `known` tells the catalog's names in a zone, `is_meant` which of the API's were asked for.
    """
    from tpuctl.flows.live_catalog import list_in_zones, list_zones
    from tpuctl.model.live_catalog import Comparison

    tpuctl = asked_live(state, project)
    cloud = tpuctl.cloud
    wanted = places(zone, region, also=state.wait_for(list_zones(cloud)))
    listed = state.wait_for(list_in_zones(cloud, what, wanted, tpuctl.emit)).filter_names(is_meant)
    here: Mapping[str, Iterable[str]] = {one: known(one) for one in listed.by_zone}
    return Live(tpuctl.project, Comparison.of(here, listed))
