"""The `types` command: offline, or compared with the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from tpuctl.view.lists import AcceleratorType

if TYPE_CHECKING:
    from tpuctl import catalog
    from tpuctl.catalog import Capacity, Choice, Offer

MAX_CHIPS = 256  # of the types that are listed without --all


@expand_option_groups
def types(
    context: typer.Context,
    *,
    names: TypeNames,
    filters: Filters,
    order: Annotated[Order, sorted_by(lambda: (AcceleratorType,))],
    query: LiveQuery,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Also list types of more than {MAX_CHIPS} chips.")
    ] = False,
) -> None:
    """List TPU types: chips, workers, who sells them, memory, and the hourly price in the cheapest
    zone.

    Large types are listed with --all, by name, and with --min-chips or --max-chips.

    Example: tpuctl types --zone europe-west4-a --max-chips 16 --sort price
    """
    from tpuctl.catalog import cheapest, offers_of

    state: State = context.obj
    state.use_format(order.format)
    choice = filters.choice(names.types, is_live=query.is_requested)
    live_result = query_types(state, query, choice, names.types, filters)
    offers = {
        (offer.accelerator.name, offer.capacity): offer
        for offer in cheapest(offers_of(choice, ("on-demand", "spot")))
    }
    rows = [_row(accelerator, choice, offers) for accelerator in choice.types]
    if live_result is not None:
        comparison = live_result.comparison
        rows = [row for row in rows if set(row["zones"]) & set(live_result.zones)]
        listed = {row["type"] for row in rows}
        rows += [_unknown(name) for name in sorted({name for name, _ in comparison.new} - listed)]
        for row in rows:
            live_result.add_to(row)
    is_filtered = filters.min_chips > 1 or filters.max_chips is not None or order.limit is not None
    is_complete = everything or is_filtered
    rows = order.apply(AcceleratorType, rows)
    note = "From: US dollars per hour on demand in the cheapest zone; prices of {read}."
    if len(choice.types) == 1:
        note = f"{note}\n{_machines(choice.types[0])}".strip()
    answer_list(
        state,
        AcceleratorType,
        lambda: responses.catalog.TypeCatalog,
        "types",
        rows,
        live_result,
        without=() if live_result is None else ("topology",),
        suggestion=("To see zones and prices of a type:", "tpuctl prices {type}"),
        note=note,
        hidden=() if is_complete else _large(rows, names.types),
    )


def _large(rows: Sequence[Fields], names: str) -> list[Fields]:
    """The rows of types that few buy, unless named, or unless there are no others."""
    large = [
        row
        for row in rows
        if (row["chips"] or 0) > MAX_CHIPS and row["type"] not in names.split(",")
    ]
    return [] if len(large) == len(rows) else large


def _machines(accelerator: catalog.AcceleratorType) -> str:
    """How Compute Engine sells a type, in words; empty if it does not."""
    from tpuctl.catalog import topologies_of, tpu_machine, tpu_machine_type

    machine = tpu_machine(accelerator)
    if machine is None:
        return ""
    shapes = topologies_of(accelerator)
    others = f" Other topologies: {', '.join(shapes[1:])}." if len(shapes) > 1 else ""
    host = tpu_machine_type(machine.machine_type)
    assert host is not None
    machines = f"{machine.hosts} {host.name}, each" if machine.hosts > 1 else f"a {host.name}"
    return (
        f"At Compute Engine: {machines} with {host.vcpus} vCPUs, {host.memory_gb} GB, and "
        f"{host.architecture}; boot disk {machine.boot_disks[0]}; image {machine.image}.{others}"
    )


def _row(
    accelerator: catalog.AcceleratorType,
    choice: Choice,
    offers: Mapping[tuple[str, Capacity], Offer],
) -> Fields:
    """A type, with its cheapest offers."""
    from tpuctl.catalog import apis_of, host_architecture, topologies_of, tpu_machine

    demand, spot = (
        offers.get((accelerator.name, "on-demand")),
        offers.get((accelerator.name, "spot")),
    )
    machine = tpu_machine(accelerator)
    return {
        "type": accelerator.name,
        "generation": accelerator.generation,
        "chips": accelerator.chips,
        "workers": accelerator.workers,
        "apis": apis_of(accelerator),
        "machine_type": machine.machine_type if machine else None,
        "architecture": host_architecture(accelerator),
        "devices": accelerator.devices,
        "topology": accelerator.topology or None,
        "topologies": topologies_of(accelerator),
        "hbm_gb": accelerator.chips * accelerator.hbm_gb_per_chip,
        "tpu_api": accelerator.in_tpu_api,
        "zones": choice.zones_of(accelerator),
        "on_demand": demand.per_hour if demand else None,
        "on_demand_zone": demand.zone if demand else None,
        "spot": spot.per_hour if spot else None,
        "spot_zone": spot.zone if spot else None,
    }


def _unknown(name: str) -> Fields:
    """A type that the API lists and the catalog lacks."""
    names = ("generation", "chips", "workers", "devices", "topology", "hbm_gb")
    prices = ("on_demand", "on_demand_zone", "spot", "spot_zone")
    machine = ("machine_type", "architecture")
    row: Fields = {"type": name, "zones": [], "apis": ["tpu"], "tpu_api": True}
    row["topologies"] = []
    return {**row, **dict.fromkeys((*names, *prices, *machine))}
