"""Lists of types, zones and runtimes, and their differences from the API with `--live`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.cli.catalog.selection import (
    Filters,
    LiveQuery,
    Row,
    answer_rows,
    live_client,
    name_filter,
    select_zones,
)
from tpuctl.units import counted

if TYPE_CHECKING:
    from tpuctl.catalog import Choice
    from tpuctl.cli.state import State
    from tpuctl.flows.live_catalog import CatalogList
    from tpuctl.model.live_catalog import Comparison
    from tpuctl.view.responses.base import Response

__all__ = ["LiveResult", "answer_list", "query_live", "query_types"]

MAX_SHOWN = 10  # differences that are listed


@dataclass(frozen=True)
class LiveResult:
    """The API's lists compared with the catalog."""

    project: str
    comparison: Comparison

    def data(self) -> Row:
        def pairs(entries: Iterable[tuple[str, str]]) -> list[Row]:
            return [{"name": name, "zone": zone} for name, zone in entries]

        return {
            "project": self.project,
            "zones": self.comparison.zones,
            "unavailable": self.comparison.listed.unread,
            "new": pairs(self.comparison.new),
            "removed": pairs(self.comparison.removed),
        }

    def sentences(self) -> list[str]:
        """The differences in words."""
        compared = self.comparison
        where = counted(len(compared.zones), "zone")
        sentences = [f"Queried {where} for project {self.project}."]
        if not compared.new and not compared.removed:
            sentences[0] += " No differences from the catalog."
        for word, entries in (("New", compared.new), ("Removed", compared.removed)):
            sentences += (f"{word}: {text}" for text in _by_name(entries))
        sentences += (
            f"No answer from {zone}: {reason}." for zone, reason in compared.listed.unread.items()
        )
        return sentences


def _by_name(entries: Sequence[tuple[str, str]]) -> list[str]:
    zones: dict[str, list[str]] = {}
    for name, zone in entries:
        zones.setdefault(name, []).append(zone)
    lines = [f"{name} in {', '.join(where)}" for name, where in zones.items()]
    if len(lines) > MAX_SHOWN:
        rest = len(lines) - MAX_SHOWN
        lines = [*lines[:MAX_SHOWN], f"and {rest} more; --json lists all"]
    return lines


def query_live(
    state: State,
    query: LiveQuery,
    catalog_list: CatalogList,
    catalog_names: Callable[[str], Iterable[str]],
    is_requested: Callable[[str], bool],
    zone: str = "",
    region: str = "",
) -> LiveResult:
    """Query each zone that the options name, or all, including zones missing in the catalog.

    `catalog_names` has the catalog's names in a zone; `is_requested` selects names of the API.
    """
    from tpuctl.flows.live_catalog import list_in_zones, list_zones
    from tpuctl.model.live_catalog import Comparison

    tpuctl = live_client(state, query.project)
    cloud = tpuctl.cloud
    zones = select_zones(zone, region, also=state.wait_for(list_zones(cloud)))
    listed = state.wait_for(list_in_zones(cloud, catalog_list, zones, tpuctl.emit)).filter_names(
        is_requested
    )
    here: Mapping[str, Iterable[str]] = {
        zone_name: catalog_names(zone_name) for zone_name in listed.by_zone
    }
    return LiveResult(tpuctl.project, Comparison.of(here, listed))


def query_types(
    state: State, query: LiveQuery, choice: Choice, types: str, filters: Filters
) -> LiveResult | None:
    """Query the selected types in the selected zones; None without --live."""
    if not query.is_requested:
        return None
    return query_live(
        state,
        query,
        "types",
        lambda place: (
            accelerator.name
            for accelerator in choice.types
            if accelerator.in_tpu_api and place in accelerator.zones
        ),
        name_filter(choice, types, filters.generation),
        filters.zone,
        filters.region,
    )


def answer_list(
    state: State,
    model: Callable[[], type[Response]],
    name: str,
    rows: list[Row],
    columns: Mapping[str, str],
    live_result: LiveResult | None,
    *,
    suggestion: tuple[str, str],
    note: str = "",
) -> None:
    """Answer a list command; `model` is only called to print JSON, and has the rows under `name`.

    `{read}` in the note is the catalog's date, and fields in the suggestion are those of the first
    row.
    """
    from tpuctl.catalog import read_date

    sentences = [note.format(read=read_date())] if rows and note else []
    if live_result is not None:
        columns = {**columns, "live": "live"}
        sentences += live_result.sentences()
    answer_rows(
        state,
        lambda: model().model_validate(
            {
                "as_of": read_date(),
                name: rows,
                "live": live_result.data() if live_result else None,
            }
        ),
        rows,
        columns,
        sentences,
        suggestion=(suggestion[0], suggestion[1].format(**rows[0])) if rows else None,
        counted=("zones",),
        empty="No matching entries.",
    )
