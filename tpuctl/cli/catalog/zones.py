"""The `zones` command: what each zone offers, and the price of a single type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from tpuctl.cli.catalog.selection import (
    Generation,
    Limit,
    Live,
    LiveProject,
    MaxChips,
    MinChips,
    Regions,
    Sort,
    Types,
    Zones,
    answer_list,
    field,
    name_filter,
    select,
    sort_rows,
)
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.catalog import AcceleratorType, Choice

__all__ = ["zones"]

Row = dict[str, Any]


def zones(
    context: typer.Context,
    accelerator: Types = "",
    generation: Generation = "",
    zone: Zones = "",
    region: Regions = "",
    min_chips: MinChips = 1,
    max_chips: MaxChips = None,
    sort: Sort = "",
    limit: Limit = None,
    live: Live = False,
    project: LiveProject = "",
) -> None:
    """List zones and what they offer; for a single type, also its price in each.

    Example: tpuctl zones --type v3-8 --sort price
    """
    state: State = context.obj
    is_live = live or bool(project)
    choice = select(
        types=accelerator,
        generation=generation,
        zone=zone,
        region=region,
        min_chips=min_chips,
        max_chips=max_chips,
        is_live=is_live,
    )
    live_result = None
    rows = [row for zone_name in choice.zones if (row := _row(zone_name, choice))]
    if is_live:
        from tpuctl.cli.catalog.live_comparison import query_live

        live_result = query_live(
            state,
            project,
            "types",
            lambda place: (
                accelerator.name
                for accelerator in choice.types
                if accelerator.in_tpu_api and place in accelerator.zones
            ),
            name_filter(choice, accelerator, generation),
            zone=zone,
            region=region,
        )
        queried = {*live_result.comparison.zones, *live_result.comparison.listed.unread}
        rows = [row for row in rows if row["zone"] in queried]
        listed = {row["zone"] for row in rows}
        rows += [
            _unknown(place)
            for place, names in live_result.comparison.listed.by_zone.items()
            if names and place not in listed
        ]
        for row in rows:
            row["live"] = live_result.comparison.of_zone(row["zone"])
    is_priced = len(choice.types) == 1
    prices = {"price": field("on_demand"), "spot": field("spot")}
    rows = sort_rows(
        rows,
        sort,
        limit,
        {
            "zone": field("zone"),
            "region": field("region"),
            "types": field("types"),
            "chips": field("most_chips"),
            **(prices if is_priced else {}),
        },
    )
    numbers = (
        {"on_demand": "on demand", "spot": "spot"}
        if is_priced
        else {"types": "types", "most_chips": "most chips"}
    )
    columns = {"zone": "zone", **numbers, "generations": "generations"}
    if live_result is not None:
        columns["live"] = "live"
    answer_list(
        state,
        "zones",
        rows,
        columns,
        live_result,
        suggestion=("To see the types in a zone:", "tpuctl types --zone {zone}"),
        note="US dollars per hour, prices of {read}; spot prices vary." if is_priced else "",
    )


def _row(zone: str, choice: Choice) -> Row | None:
    """None if the zone offers none of the selected types."""
    from tpuctl.catalog import node_price, region_of

    offered: list[AcceleratorType] = [
        accelerator for accelerator in choice.types if zone in accelerator.zones
    ]
    if not offered:
        return None
    single = choice.types[0] if len(choice.types) == 1 else None
    demand = node_price(single, zone) if single else None
    spot = node_price(single, zone, spot=True) if single else None
    return {
        "zone": zone,
        "region": region_of(zone),
        "generations": list(dict.fromkeys(accelerator.generation for accelerator in offered)),
        "types": len(offered),
        "most_chips": max(accelerator.chips for accelerator in offered),
        "on_demand": demand.per_hour if demand else None,
        "spot": spot.per_hour if spot else None,
    }


def _unknown(zone: str) -> Row:
    """A zone that the API lists types in and the catalog does not."""
    from tpuctl.catalog import region_of

    names = ("types", "most_chips", "on_demand", "spot")
    return {"zone": zone, "region": region_of(zone), "generations": [], **dict.fromkeys(names)}
