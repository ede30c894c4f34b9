"""The `prices` command: nodes, machines, disks, storage, and budgets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.catalog.selection import (
    CapacityName,
    Generation,
    HiddenType,
    Limit,
    Live,
    MaxChips,
    MinChips,
    Regions,
    Sort,
    Zones,
    capacities,
    select,
)
from tpuctl.cli.completion.candidates import complete_types
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.catalog import Choice
    from tpuctl.model.budget import Budget
    from tpuctl.model.price_list import PriceList

__all__ = ["prices"]


def prices(
    context: typer.Context,
    accelerator: Annotated[
        str,
        typer.Argument(
            metavar="[TYPE]",
            help="Type, generation (v5e), pattern ('v6e-*'), or a comma-separated list.",
            autocompletion=complete_types,
            show_default=False,
        ),
    ] = "",
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="AMOUNT/PERIOD",
            help="Show what fits a budget: 20/day, 5/8h, 300/month, or 50.",
        ),
    ] = "",
    capacity: CapacityName = "",
    generation: Generation = "",
    zone: Zones = "",
    region: Regions = "",
    min_chips: MinChips = 1,
    max_chips: MaxChips = None,
    every_zone: Annotated[
        bool,
        typer.Option("--every-zone", help="Show every zone, not only the cheapest of each type."),
    ] = False,
    sort: Sort = "",
    limit: Limit = None,
    machines: Annotated[
        bool, typer.Option("--machines", help="Show prices of controller machine types.")
    ] = False,
    disks: Annotated[bool, typer.Option("--disks", help="Show disk prices by region.")] = False,
    storage: Annotated[
        bool, typer.Option("--storage", help="Show bucket and traffic prices by location.")
    ] = False,
    live: Live = False,
    type_too: HiddenType = "",
) -> None:
    """Show hourly node prices: one type by zone, several types in their cheapest zones.

    Example: tpuctl prices --budget 20/day --generation v5e
    """
    from tpuctl.cli.catalog.node_prices import NodePrices
    from tpuctl.errors import Usage
    from tpuctl.model.events import Note
    from tpuctl.view.cost import FREE

    state: State = context.obj
    if state.is_free:
        state.view.on(Note(f"{FREE} These are Google's prices."))
    accelerator = ",".join(filter(None, (accelerator, type_too)))
    other_kinds = [
        name for name, is_wanted in _selected_flags(machines, disks, storage) if is_wanted
    ]
    nodes = [
        name
        for name, value in (
            ("TYPE", accelerator),
            ("--budget", budget),
            ("--capacity", capacity),
            ("--generation", generation),
            ("--min-chips", min_chips > 1),
            ("--max-chips", max_chips),
            ("--every-zone", every_zone),
            ("--live", live),
        )
        if value
    ]
    if len(other_kinds) > 1 or (other_kinds and nodes):
        raise Usage(
            "Conflicting options",
            f"{' and '.join([*other_kinds, *nodes])} select different prices",
            hint="Select one kind of price at a time:\n"
            "    tpuctl prices v3-8\n    tpuctl prices --machines --zone europe-west4-a",
        )
    if other_kinds:
        from tpuctl.cli.catalog import other_prices

        getattr(other_prices, OTHER_PRICES[other_kinds[0]])(
            state, _one_region(zone, region), sort, limit
        )
        return
    choice = select(
        types=accelerator,
        generation=generation,
        zone=zone,
        region=region,
        min_chips=min_chips,
        max_chips=max_chips,
    )
    selected = capacities(capacity)
    parsed_budget = _budget(budget)
    shown = NodePrices(state, choice, selected, _price_list(state, choice) if live else None)
    if parsed_budget is None and len(choice.types) == 1:
        shown.by_zone(sort, limit)
    else:
        shown.offers(parsed_budget, every_zone=every_zone, sort=sort, limit=limit)


OTHER_PRICES = {
    "--machines": "machine_prices",
    "--disks": "disk_prices",
    "--storage": "storage_prices",
}


def _selected_flags(*flags: bool) -> Iterable[tuple[str, bool]]:
    return zip(OTHER_PRICES, flags, strict=True)


def _one_region(zone: str, region: str) -> str:
    """The region of machine, disk or bucket prices; empty for all."""
    from tpuctl.catalog import region_of
    from tpuctl.cli.catalog.selection import select_zones
    from tpuctl.errors import Usage

    if not zone and not region:
        return ""
    regions = {region_of(zone_name) for zone_name in select_zones(zone, region)}
    if len(regions) > 1:
        raise Usage(
            "Too many regions",
            "machine, disk and storage prices are for one region, or for all",
            hint="Pass one region, or remove the option.",
            where="--zone" if zone else "--region",
        )
    return regions.pop()


def _budget(text: str) -> Budget | None:
    from tpuctl.errors import Usage
    from tpuctl.model.budget import FORMS, parse_budget

    parsed = parse_budget(text)
    if parsed is None and text:
        raise Usage(
            "Invalid value",
            f"--budget: {text} is not a budget",
            hint=f"{FORMS}.",
            where="--budget",
        )
    return parsed


def _price_list(state: State, choice: Choice) -> PriceList:
    """Google's price list for the selection. Prices are public: no project is needed."""
    from tpuctl.cloud.clients import Cloud
    from tpuctl.flows.price_list import read_price_list
    from tpuctl.model.price_list import service_of

    tpuctl = state.tpuctl()
    cloud = Cloud(tpuctl.endpoint, "")
    services = {service_of(accelerator) for accelerator in choice.types}
    return state.wait_for(read_price_list(cloud, services, tpuctl.emit))
