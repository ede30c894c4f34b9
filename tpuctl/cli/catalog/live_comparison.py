"""Lists of types, zones and runtimes, and their differences from the API with `--live`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpuctl.cli.catalog.selection import (
    Fields,
    Filters,
    LiveQuery,
    answer_rows,
    live_client,
    name_filter,
    select_zones,
)
from tpuctl.units import counted

if TYPE_CHECKING:
    from tpuctl.catalog import Choice
    from tpuctl.cli.state import State
    from tpuctl.flows.stack.live_catalog import CatalogList
    from tpuctl.model.capacity.live_catalog import Comparison
    from tpuctl.model.capacity.reservation import TpuReservation
    from tpuctl.view.columns import Row
    from tpuctl.view.responses.base import Response

MAX_SHOWN = 10  # differences that are listed


@dataclass(frozen=True)
class ComputeResult:
    """What Compute Engine lists: its machine types compared with the catalog, and reservations.

    `problem` is the reason if it did not answer.
    """

    comparison: Comparison
    reservations: Sequence[TpuReservation] = ()
    problem: str = ""

    def sentences(self) -> Iterator[str]:
        if self.problem:
            yield f"No answer from Compute Engine: {self.problem}."
        yield from _differences(self.comparison, " at Compute Engine")
        for reservation in self.reservations:
            yield str(reservation)
        usable = [reservation for reservation in self.reservations if reservation.is_usable]
        if usable:
            settings = f"capacity: reserved, reservation: {usable[0].name}"
            yield f"To use a reservation:\n    tpu: {{{settings}}}"


@dataclass(frozen=True)
class LiveResult:
    """The API's lists compared with the catalog; `compute` only for types and their zones."""

    project: str
    comparison: Comparison
    compute: ComputeResult | None = None

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that answered."""
        more = self.compute.comparison.zones if self.compute else ()
        return tuple(dict.fromkeys((*self.comparison.zones, *more)))

    @property
    def queried(self) -> frozenset[str]:
        return frozenset((*self.zones, *self.comparison.listed.unread))

    @property
    def zones_with_names(self) -> tuple[str, ...]:
        """The zones that offer something."""
        listings = [
            self.comparison.listed,
            *([self.compute.comparison.listed] if self.compute else ()),
        ]
        return tuple(
            zone for zone in self.zones if any(listed.by_zone.get(zone) for listed in listings)
        )

    def add_to(self, row: Fields) -> None:
        """Add the differences of a type or zone to its row, and a type's zones."""
        machines = self.compute.comparison if self.compute else None
        if "type" not in row:
            row["live"] = self.comparison.of_zone(row["zone"])
            row["live_compute"] = machines.of_zone(row["zone"]) if machines else "?"
            return
        name, machine_type = row["type"], row["machine_type"]
        zones = self.comparison.zones_of(name)
        row["live"] = self.comparison.of_name(name) if "tpu" in row["apis"] else "-"
        row["live_compute"] = "-"
        if machine_type:
            row["live_compute"] = machines.of_name(machine_type) if machines else "?"
            zones += machines.zones_of(machine_type) if machines else ()
        row["zones"] = sorted(set(zones))

    def sentences(self) -> list[str]:
        """The differences in words."""
        compared = self.comparison
        where = counted(len(compared.zones), "zone")
        sentences = [f"Queried {where} for project {self.project}."]
        if self.compute is not None:
            sentences[0] = f"Queried both APIs in {where} for project {self.project}."
        differences = [
            *_differences(compared),
            *(
                f"No answer from {zone}: {reason}."
                for zone, reason in compared.listed.unread.items()
            ),
            *(self.compute.sentences() if self.compute else ()),
        ]
        if not any(line.startswith(("New", "Removed")) for line in differences):
            sentences[0] += " No differences from the catalog."
        return [*sentences, *differences]


def _differences(comparison: Comparison, where: str = "") -> Iterator[str]:
    for word, entries in (("New", comparison.new), ("Removed", comparison.removed)):
        yield from (f"{word}{where}: {text}" for text in _by_name(entries))


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
    from tpuctl.flows.stack.live_catalog import list_in_zones, list_zones
    from tpuctl.model.capacity.live_catalog import Comparison

    tpuctl = live_client(state, query.project)
    cloud = tpuctl.cloud
    zones = select_zones(zone, region, also=state.wait_for(list_zones(cloud)))
    listed = state.wait_for(list_in_zones(cloud, catalog_list, zones, tpuctl.emit)).filter_names(
        is_requested
    )
    catalog: Mapping[str, Iterable[str]] = {
        zone_name: catalog_names(zone_name) for zone_name in listed.by_zone
    }
    return LiveResult(tpuctl.project, Comparison.of(catalog, listed))


def query_types(
    state: State, query: LiveQuery, choice: Choice, types: str, filters: Filters
) -> LiveResult | None:
    """Query the selected types in the selected zones, at both APIs; None without --live."""
    from tpuctl.catalog import zones_of

    if not query.is_requested:
        return None
    result = query_live(
        state,
        query,
        "types",
        lambda place: (
            accelerator.name
            for accelerator in choice.types
            if place in zones_of(accelerator, "tpu")
        ),
        name_filter(choice, types, filters.generation),
        filters.zone,
        filters.region,
    )
    return replace(result, compute=_query_compute(state, query, choice, result))


def _query_compute(
    state: State, query: LiveQuery, choice: Choice, result: LiveResult
) -> ComputeResult | None:
    """Query the machine types of the selected types; None if Compute Engine sells none of them.

    New machine types belong to the selection if they are of a selected generation.
    """
    from tpuctl.catalog import TPU_MACHINE_FAMILIES, tpu_machine, tpu_machine_types, zones_of
    from tpuctl.errors import TpuctlError
    from tpuctl.flows.stack.live_catalog import list_machine_types, list_reservations, short_reason
    from tpuctl.model.capacity.live_catalog import Comparison, Listed

    zones_by_name: dict[str, set[str]] = {}
    for accelerator in choice.types:
        if machine := tpu_machine(accelerator):
            where = zones_by_name.setdefault(machine.machine_type, set())
            where.update(zones_of(accelerator, "compute"))
    if not zones_by_name:
        return None
    generations = {accelerator.generation for accelerator in choice.types}
    families = tuple(
        f"{TPU_MACHINE_FAMILIES[family]}-" for family in generations & {*TPU_MACHINE_FAMILIES}
    )
    all_names = tpu_machine_types()

    def is_requested(name: str) -> bool:
        return name in zones_by_name if name in all_names else name.startswith(families)

    tpuctl = live_client(state, query.project)
    zones = sorted(result.queried)
    try:
        listed = state.wait_for(list_machine_types(tpuctl.cloud, zones, all_names, tpuctl.emit))
        reservations = state.wait_for(list_reservations(tpuctl.cloud, tpuctl.emit))
    except TpuctlError as error:  # the project may use Cloud TPU alone
        return ComputeResult(Comparison({}, Listed({})), problem=short_reason(error))
    return ComputeResult(
        Comparison.of(
            {
                zone: [name for name, where in zones_by_name.items() if zone in where]
                for zone in zones
            },
            listed.filter_names(is_requested),
        ),
        [
            reservation
            for reservation in reservations
            if reservation.generation in generations and reservation.zone in result.queried
        ],
    )


def answer_list(
    state: State,
    row_type: type[Row],
    model: Callable[[], type[Response]],
    name: str,
    rows: list[Fields],
    live_result: LiveResult | None,
    *,
    suggestion: tuple[str, str],
    without: Collection[str] = (),
    note: str = "",
    hidden: Sequence[Fields] = (),
) -> None:
    """Answer a list command like `answer_rows`; the model has the rows under `name`. Hidden rows
    are only in JSON.

    `{read}` in the note is the catalog's date, and fields in the suggestion are those of the first
    row.
    """
    from tpuctl.catalog import read_date

    sentences = note.format(read=read_date()).splitlines() if rows else []
    if hidden:
        sentences.append(
            f"{counted(len(hidden), 'larger type')} not shown; use --all to list them."
        )
    if live_result is not None:
        without = without if live_result.compute else {*without, "live_compute"}
        sentences += live_result.sentences()
    answer_rows(
        state,
        row_type,
        model,
        {"as_of": read_date(), name: rows, "live": live_result},
        [row for row in rows if row not in hidden],
        sentences,
        without=without,
        suggestion=(suggestion[0], suggestion[1].format(**rows[0])) if rows else None,
        empty="No matching entries.",
    )
