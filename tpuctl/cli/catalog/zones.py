"""The `zones` command: what each zone offers, and the price of a single type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.catalog.live_comparison import answer_list, query_types
from tpuctl.cli.catalog.selection import (
    Fields,
    Filters,
    LiveQuery,
    TypeNames,
)
from tpuctl.cli.parameters.option_groups import expand_option_groups
from tpuctl.cli.parameters.options import Order, sorted_by
from tpuctl.cli.state import State
from tpuctl.view.lists import Zone

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tpuctl.catalog import AcceleratorType, Api, Choice
    from tpuctl.model.capacity.capacity_history import ZoneHistory

CALENDAR_NOTE = (
    "Calendar: capacity can be reserved for {} to {} days, as a future reservation at "
    "Compute Engine; use it with tpu.reservation."
)


@expand_option_groups
def zones(
    context: typer.Context,
    *,
    names: TypeNames,
    filters: Filters,
    order: Annotated[Order, sorted_by(lambda: (Zone,))],
    query: LiveQuery,
) -> None:
    """List zones, what they offer, and at which API; for a single type, also its price in each
    zone, and which zones granted or refused it to your stacks. With --live, also list TPU
    reservations.

    Example: tpuctl zones v5e-8 --sort price
    """
    from tpuctl.catalog import CALENDAR_DAYS

    state: State = context.obj
    state.use_format(order.format)
    choice = filters.choice(names.types, is_live=query.is_requested)
    live_result = query_types(state, query, choice, names.types, filters)
    rows = [row for zone_name in choice.zones if (row := _row(zone_name, choice))["types"]]
    if live_result is not None:
        rows = [row for row in rows if row["zone"] in live_result.queried]
        listed = {row["zone"] for row in rows}
        others = (
            zone_name for zone_name in live_result.zones_with_names if zone_name not in listed
        )
        rows += [_row(zone_name, choice) for zone_name in others]
        for row in rows:
            live_result.add_to(row)
    without, note = {"on_demand", "spot", "calendar", "history"}, ""
    if len(choice.types) == 1:
        without = {"types", "most_chips", "generations", "calendar", "history"}
        note = "US dollars per hour, prices of {read}; spot prices vary."
        if any(row["calendar"] for row in rows):
            note += "\n" + CALENDAR_NOTE.format(*CALENDAR_DAYS, read="{read}")
        if _add_history(rows, choice.types[0].name, state.cloud.value):
            without.remove("history")
        elif live_result is None:
            without.remove("calendar")
    answer_list(
        state,
        Zone,
        lambda: responses.catalog.ZoneCatalog,
        "zones",
        order.apply(Zone, rows),
        live_result,
        without=without,
        suggestion=("To see the types in a zone:", "tpuctl types --zone {zone}"),
        note=note,
    )


def _add_history(rows: list[Fields], type_name: str, cloud: str) -> bool:
    """Add what came of earlier requests for a type; returns whether there is any."""
    from tpuctl.model.capacity.capacity_history import read_attempts, zone_histories

    histories = zone_histories(read_attempts(cloud), type_name)
    for row in rows:
        row["history"] = [_past(history) for history in histories.get(row["zone"], [])]
    return any(row["history"] for row in rows)


def _past(history: ZoneHistory) -> Fields:
    granted, refused = history.granted, history.refused
    return {
        "capacity": history.capacity,
        "api": history.api,
        "granted": granted and granted.time.isoformat(),
        "waited_seconds": granted and granted.seconds,
        "refused_since": history.refused_since,
        "refused": refused and refused.time.isoformat(),
        "error": refused and refused.error,
        "text": history.text(),
    }


def _row(zone: str, choice: Choice) -> Fields:
    """Without `types` if, according to the catalog, the zone offers none of the selected ones."""
    from tpuctl.catalog import (
        APIS,
        calendar_zones,
        flex_start_zones,
        node_price,
        region_of,
        zones_of,
    )

    offered = [accelerator for accelerator in choice.types if zone in zones_of(accelerator)]
    single = offered[0] if offered and len(choice.types) == 1 else None
    demand = node_price(single, zone) if single else None
    spot = node_price(single, zone, spot=True) if single else None

    def apis_with(
        zones_with: Callable[[AcceleratorType, Api], Collection[str]],
    ) -> list[Api]:
        return [api for api in APIS if any(zone in zones_with(kind, api) for kind in offered)]

    apis, flex_start = apis_with(zones_of), apis_with(flex_start_zones)
    calendar = any(zone in calendar_zones(accelerator) for accelerator in offered)
    return {
        "zone": zone,
        "region": region_of(zone),
        "apis": apis,
        "flex_start": flex_start,
        "calendar": calendar,
        "generations": list(dict.fromkeys(accelerator.generation for accelerator in offered)),
        "types": len(offered) or None,
        "most_chips": max((accelerator.chips for accelerator in offered), default=None),
        "on_demand": demand.per_hour if demand else None,
        "spot": spot.per_hour if spot else None,
        "history": [],
    }
