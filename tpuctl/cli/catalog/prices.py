"""The command `prices`: of nodes, of what stands beside them, and what a budget pays for."""

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
            help="A type, a generation (v5e), a pattern ('v6e-*'), or several with commas.",
            autocompletion=complete_types,
            show_default=False,
        ),
    ] = "",
    budget: Annotated[
        str,
        typer.Option(
            "--budget", metavar="SUM/TIME", help="What it pays for: 20/day, 5/8h, 300/month, or 50."
        ),
    ] = "",
    capacity: CapacityName = "",
    generation: Generation = "",
    zone: Zones = "",
    region: Regions = "",
    min_chips: MinChips = 1,
    max_chips: MaxChips = None,
    every_zone: Annotated[
        bool, typer.Option("--every-zone", help="Each zone, not the cheapest of a type alone.")
    ] = False,
    sort: Sort = "",
    limit: Limit = None,
    machines: Annotated[
        bool, typer.Option("--machines", help="Machine types of controllers instead.")
    ] = False,
    disks: Annotated[bool, typer.Option("--disks", help="Disks instead, by region.")] = False,
    storage: Annotated[
        bool, typer.Option("--storage", help="Buckets instead, by location, and their traffic.")
    ] = False,
    live: Live = False,
    type_too: HiddenType = "",
) -> None:
    """Show what nodes cost an hour: of one type by zone, of several where each is cheapest.

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
    beside = [name for name, is_wanted in _selected_flags(machines, disks, storage) if is_wanted]
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
    if len(beside) > 1 or (beside and nodes):
        raise Usage(
            "Conflicting options",
            f"{' and '.join([*beside, *nodes])} are about different things",
            hint="Prices are shown of one thing at a time:\n"
            "    tpuctl prices v3-8\n    tpuctl prices --machines --zone europe-west4-a",
        )
    if beside:
        from tpuctl.cli.catalog import other_prices

        getattr(other_prices, OTHER_PRICES[beside[0]])(
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
    """The region that machines, disks or buckets are asked of; empty for every one."""
    from tpuctl.catalog import region_of
    from tpuctl.cli.catalog.selection import select_zones
    from tpuctl.errors import Usage

    if not zone and not region:
        return ""
    regions = {region_of(zone_name) for zone_name in select_zones(zone, region)}
    if len(regions) > 1:
        raise Usage(
            "Too many regions",
            "what stands beside a TPU is shown of one region at a time, or of all",
            hint="Name one, or leave the option out.",
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
            f"--budget cannot be {text}",
            hint=f"{FORMS}.",
            where="--budget",
        )
    return parsed


def _price_list(state: State, choice: Choice) -> PriceList:
    """Google's own, of what the choice is charged by. Prices are public: no project is asked."""
    from tpuctl.cloud.clients import Cloud
    from tpuctl.flows.price_list import read_price_list
    from tpuctl.model.price_list import service_of

    tpuctl = state.tpuctl()
    cloud = Cloud(tpuctl.endpoint, "")
    services = {service_of(accelerator) for accelerator in choice.types}
    return state.wait_for(read_price_list(cloud, services, tpuctl.emit))
