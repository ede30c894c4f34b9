"""The `types` command: offline, or compared with the API."""

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
    natural_key,
    select,
    sort_rows,
)
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.catalog import AcceleratorType, Choice

__all__ = ["types"]

Row = dict[str, Any]


def types(
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
    """List TPU types: chips, workers, memory, and the hourly price in the cheapest zone.

    Example: tpuctl types --zone europe-west4-a --max-chips 16 --sort price
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
    rows = [_row(accelerator, choice) for accelerator in choice.types]
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
        rows = [row for row in rows if set(row["zones"]) & set(live_result.comparison.zones)]
        rows += [
            _unknown(name)
            for name in sorted({name for name, _ in live_result.comparison.new})
            if name not in {row["type"] for row in rows}
        ]
        for row in rows:
            is_asked = row["tpu_api"] is not False
            row["live"] = live_result.comparison.of_name(row["type"]) if is_asked else "-"
            if is_asked:
                row["zones"] = list(live_result.comparison.zones_of(row["type"]))
    rows = sort_rows(
        rows,
        sort,
        limit,
        {
            "type": lambda row: natural_key(row["type"]),
            "generation": field("generation"),
            "chips": field("chips"),
            "workers": field("workers"),
            "devices": field("devices"),
            "hbm-gb": field("hbm_gb"),
            "zones": lambda row: len(row["zones"]),
            "price": field("on_demand"),
            "spot": field("spot"),
        },
    )
    columns = {
        "type": "type",
        "chips": "chips",
        "workers": "workers",
        "devices": "devices",
        "topology": "topology",
        "hbm_gb": "HBM GB",
        "zones": "zones",
        "on_demand": "from",
        "live": "live",
    }
    for name in ["live"] if live_result is None else ["devices", "topology"]:
        del columns[name]
    answer_list(
        state,
        "types",
        rows,
        columns,
        live_result,
        suggestion=("To see zones and prices of a type:", "tpuctl prices {type}"),
        note="From: US dollars per hour on demand in the cheapest zone; prices of {read}.",
        counted=("zones",),
    )


def _row(accelerator: AcceleratorType, choice: Choice) -> Row:
    from tpuctl.catalog import Choice, cheapest, offers_of

    here = choice.zones_of(accelerator)
    best = {each.capacity: each for each in cheapest(offers_of(Choice((accelerator,), here)))}
    demand, spot = best.get("on-demand"), best.get("spot")
    return {
        "type": accelerator.name,
        "generation": accelerator.generation,
        "chips": accelerator.chips,
        "workers": accelerator.workers,
        "devices": accelerator.devices,
        "topology": accelerator.topology or None,
        "hbm_gb": accelerator.chips * accelerator.hbm_gb_per_chip,
        "tpu_api": accelerator.in_tpu_api,
        "zones": list(here),
        "on_demand": demand.per_hour if demand else None,
        "on_demand_zone": demand.zone if demand else None,
        "spot": spot.per_hour if spot else None,
        "spot_zone": spot.zone if spot else None,
    }


def _unknown(name: str) -> Row:
    """A type that the API lists and the catalog lacks."""
    names = ("generation", "chips", "workers", "devices", "topology", "hbm_gb")
    prices = ("on_demand", "on_demand_zone", "spot", "spot_zone")
    return {"type": name, "zones": [], "tpu_api": True, **dict.fromkeys((*names, *prices))}
