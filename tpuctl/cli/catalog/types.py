"""The `types` command: offline, or compared with the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tpuctl.cli import responses
from tpuctl.cli.catalog.live_comparison import answer_list, query_types
from tpuctl.cli.catalog.selection import Filters, HiddenType, LiveQuery, Order, Row, TypeArgument
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.catalog import AcceleratorType, Choice

__all__ = ["types"]


def types(
    context: typer.Context,
    accelerator: TypeArgument = "",
    *,
    filters: Filters,
    order: Order,
    query: LiveQuery,
    type_too: HiddenType = "",
) -> None:
    """List TPU types: chips, workers, memory, and the hourly price in the cheapest zone.

    Example: tpuctl types --zone europe-west4-a --max-chips 16 --sort price
    """
    state: State = context.obj
    state.use_format(order.format)
    accelerator = ",".join(filter(None, (accelerator, type_too)))
    choice = filters.choice(accelerator, is_live=query.is_requested)
    live_result = query_types(state, query, choice, accelerator, filters)
    rows = [_row(accelerator, choice) for accelerator in choice.types]
    if live_result is not None:
        comparison = live_result.comparison
        rows = [row for row in rows if set(row["zones"]) & set(comparison.zones)]
        listed = {row["type"] for row in rows}
        rows += [_unknown(name) for name in sorted({name for name, _ in comparison.new} - listed)]
        for row in rows:
            is_asked = row["tpu_api"] is not False
            row["live"] = comparison.of_name(row["type"]) if is_asked else "-"
            if is_asked:
                row["zones"] = list(comparison.zones_of(row["type"]))
    keys = "type generation chips workers devices hbm-gb zones price spot"
    rows = order.apply(rows, keys, price="on_demand")
    shape = {"devices": "devices", "topology": "topology"} if live_result is None else {}
    columns = {"type": "type", "chips": "chips", "workers": "workers", **shape}
    columns |= {"hbm_gb": "HBM GB", "zones": "zones", "on_demand": "from"}
    answer_list(
        state,
        lambda: responses.catalog.TypeCatalog,
        "types",
        rows,
        columns,
        live_result,
        suggestion=("To see zones and prices of a type:", "tpuctl prices {type}"),
        note="From: US dollars per hour on demand in the cheapest zone; prices of {read}.",
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
