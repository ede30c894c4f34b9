"""The `prices` command: nodes, machines, disks, storage, and budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.catalog.selection import (
    CapacityName,
    Filters,
    Live,
    TypeNames,
    capacities,
    select_zones,
)
from tpuctl.cli.parameters.option_groups import expand_option_groups
from tpuctl.cli.parameters.options import Order, sorted_by
from tpuctl.cli.state import State
from tpuctl.view.lists import DiskPrice, MachinePrice, NodeOffer, StoragePrice, ZonePrice

if TYPE_CHECKING:
    from tpuctl.catalog import Choice
    from tpuctl.model.cost.budget import Budget
    from tpuctl.model.cost.price_list import PriceList


@expand_option_groups
def prices(
    context: typer.Context,
    *,
    names: TypeNames,
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="AMOUNT/PERIOD",
            help="Show what fits: 20/day, 5/8h, 300/month, or 50.",
        ),
    ] = "",
    capacity: CapacityName = "",
    filters: Filters,
    every_zone: Annotated[
        bool,
        typer.Option("--every-zone", help="Show every zone, not only the cheapest."),
    ] = False,
    order: Annotated[
        Order, sorted_by(lambda: (NodeOffer, ZonePrice, MachinePrice, DiskPrice, StoragePrice))
    ],
    machines: Annotated[
        bool, typer.Option("--machines", help="Show prices of controller machine types.")
    ] = False,
    disks: Annotated[bool, typer.Option("--disks", help="Show disk prices by region.")] = False,
    storage: Annotated[
        bool, typer.Option("--storage", help="Show bucket and traffic prices by location.")
    ] = False,
    live: Live = False,
) -> None:
    """Show hourly node prices: one type by zone, several types in their cheapest zones.

    Example: tpuctl prices --budget 20/day --generation v5e
    """
    from tpuctl.cli.catalog.node_prices import NodePrices
    from tpuctl.cli.catalog.other_prices import disk_prices, machine_prices, storage_prices
    from tpuctl.view.stack.cost import FREE

    state: State = context.obj
    state.use_format(order.format)
    if state.is_free:
        state.announce(f"{FREE} These are Google's prices.")
    others = {
        name: answer
        for name, answer, is_selected in (
            ("--machines", machine_prices, machines),
            ("--disks", disk_prices, disks),
            ("--storage", storage_prices, storage),
        )
        if is_selected
    }
    nodes = {
        "TYPE": names.types,
        "--budget": budget,
        "--capacity": capacity,
        "--generation": filters.generation,
        "--min-chips": filters.min_chips > 1,
        "--max-chips": filters.max_chips,
        "--every-zone": every_zone,
        "--live": live,
    }
    if others:
        _require_single_kind([*others], [name for name, value in nodes.items() if value])
        (answer,) = others.values()
        answer(state, _single_region(filters), order)
        return
    choice = filters.choice(names.types)
    priced, parsed_budget = capacities(capacity), _budget(budget)
    shown = NodePrices(state, choice, priced, order, _price_list(state, choice) if live else None)
    if parsed_budget is None and len(choice.types) == 1:
        shown.by_zone()
    else:
        shown.offers(parsed_budget, every_zone=every_zone)


def _require_single_kind(others: list[str], nodes: list[str]) -> None:
    from tpuctl.errors import Usage

    if len(others) > 1 or nodes:
        raise Usage(
            "Conflicting options",
            f"{' and '.join([*others, *nodes])} select different prices",
            hint="Select one kind of price at a time:\n"
            "    tpuctl prices v5e-8\n    tpuctl prices --machines --zone europe-west4-a",
        )


def _single_region(filters: Filters) -> str:
    """The region of machine, disk or bucket prices; empty for all."""
    from tpuctl.catalog import region_of
    from tpuctl.errors import Usage

    if not filters.zone and not filters.region:
        return ""
    regions = {region_of(zone_name) for zone_name in select_zones(filters.zone, filters.region)}
    if len(regions) > 1:
        raise Usage(
            "Too many regions",
            "machine, disk and storage prices are for one region, or for all",
            hint="Pass one region, or remove the option.",
            where="--zone" if filters.zone else "--region",
        )
    return regions.pop()


def _budget(text: str) -> Budget | None:
    from tpuctl.errors import Usage
    from tpuctl.model.cost.budget import FORMS, parse_budget

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
    from tpuctl.flows.stack.prices import read_price_list
    from tpuctl.model.cost.price_list import service_of

    tpuctl = state.tpuctl()
    cloud = Cloud(tpuctl.endpoint, "", record=tpuctl.record_call)
    services = {service_of(accelerator) for accelerator in choice.types}
    return state.wait_for(read_price_list(cloud, services, tpuctl.emit))
