"""Commands for the catalogue, offline: types, zones, runtimes, prices."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.app import State

__all__ = ["register"]

PANEL = "Catalogue"


def register(app: typer.Typer) -> None:
    for command in (types, zones, runtimes, prices):
        app.command(rich_help_panel=PANEL)(command)


def types(
    context: typer.Context,
    zone: Annotated[str, typer.Option("--zone", help="Only what this zone offers.")] = "",
) -> None:
    """List TPU types: chips, workers, memory.

    Example: tpuctl types --zone europe-west4-a
    """
    from tpuctl.catalog import accelerator_types
    from tpuctl.view.tables import print_table

    state: State = context.obj
    _known_zone(zone)
    found = [one for one in accelerator_types().values() if not zone or zone in one.zones]
    data = [
        {
            "type": one.name,
            "chips": one.chips,
            "workers": one.workers,
            "devices": one.devices,
            "topology": one.topology,
            "hbm_gb": one.chips * one.hbm_gb_per_chip,
            "tpu_api": one.in_tpu_api,
            "zones": list(one.zones),
        }
        for one in found
    ]
    columns = ("type", "chips", "workers", "devices", "topology", "hbm_gb")
    state.answer(
        data,
        lambda: print_table(
            columns, [[str(row[name]) for name in columns] for row in data], numbers=columns[1:]
        ),
    )


def zones(
    context: typer.Context,
    accelerator: Annotated[str, typer.Option("--type", help="Only zones with this type.")] = "",
) -> None:
    """List zones and the generations they offer.

    Example: tpuctl zones --type v3-8
    """
    from tpuctl.catalog import accelerator_types
    from tpuctl.catalog import zones as every_zone
    from tpuctl.view.tables import print_table

    state: State = context.obj
    _known_type(accelerator)
    rows = []
    for zone in every_zone():
        offered = [one for one in accelerator_types().values() if zone in one.zones]
        if not accelerator or accelerator in (one.name for one in offered):
            generations = list(dict.fromkeys(one.generation for one in offered))
            rows.append({"zone": zone, "generations": generations})
    state.answer(
        rows,
        lambda: print_table(
            ("zone", "generations"),
            [(str(row["zone"]), ", ".join(row["generations"])) for row in rows],
        ),
    )


def runtimes(
    context: typer.Context,
    accelerator: Annotated[str, typer.Option("--type", help="Only what fits this type.")] = "",
) -> None:
    """List runtimes, newest TensorFlow first; the first that fits is what `auto` takes.

    Example: tpuctl runtimes --type v3-8
    """
    from tpuctl.catalog import accelerator_type
    from tpuctl.catalog import runtimes as every_runtime
    from tpuctl.view.tables import print_table

    state: State = context.obj
    _known_type(accelerator)
    wanted = accelerator_type(accelerator) if accelerator else None
    data = [
        {
            "runtime": one.version,
            "tensorflow": one.tensorflow,
            "generations": list(one.generations),
            "hosts": one.hosts,
        }
        for one in every_runtime()
        if wanted is None or one.fits(wanted)
    ]
    state.answer(
        data,
        lambda: print_table(
            ("runtime", "tensorflow", "generations", "hosts"),
            [
                (
                    str(row["runtime"]),
                    str(row["tensorflow"] or "-"),
                    ", ".join(row["generations"] or ()),
                    str(row["hosts"]),
                )
                for row in data
            ],
        ),
    )


def prices(
    context: typer.Context,
    accelerator: Annotated[str, typer.Argument(help="A TPU type.")],
) -> None:
    """Show what a node of a type costs an hour, cheapest zone first.

    Example: tpuctl prices v3-8
    """
    from tpuctl.catalog import accelerator_type, node_price, read_date
    from tpuctl.view.tables import money, print_table

    state: State = context.obj
    _known_type(accelerator)
    wanted = accelerator_type(accelerator)
    assert wanted is not None
    rows = []
    for zone in wanted.zones:
        demand, spot = node_price(wanted, zone), node_price(wanted, zone, spot=True)
        rows.append(
            {
                "zone": zone,
                "on_demand": demand.per_hour if demand else None,
                "spot": spot.per_hour if spot else None,
            }
        )
    rows.sort(key=lambda row: (row["on_demand"] is None, row["on_demand"], row["zone"]))

    def show() -> None:
        print_table(
            ("zone", "on demand", "spot"),
            [
                (
                    str(row["zone"]),
                    money(float(row["on_demand"])) if row["on_demand"] else "-",
                    money(float(row["spot"])) if row["spot"] else "-",
                )
                for row in rows
            ],
            numbers=("on demand", "spot"),
        )
        print(f"US dollars an hour for one {accelerator}, prices of {read_date()}; spot floats.")

    state.answer({"type": accelerator, "read": read_date(), "prices": rows}, show)


def _known_type(name: str) -> None:
    from tpuctl.catalog import accelerator_types, nearest
    from tpuctl.errors import Usage

    if name and name not in accelerator_types():
        like = nearest(name, accelerator_types())
        hint = f"Did you mean {', '.join(like)}?" if like else "All of them:\n    tpuctl types"
        raise Usage("Unknown TPU type", f"there is no type {name}", hint=hint)


def _known_zone(name: str) -> None:
    from tpuctl.catalog import nearest
    from tpuctl.catalog import zones as every_zone
    from tpuctl.errors import Usage

    if name and name not in every_zone():
        like = nearest(name, every_zone())
        hint = f"Did you mean {', '.join(like)}?" if like else "All of them:\n    tpuctl zones"
        raise Usage("Unknown zone", f"no TPU is offered in {name}", hint=hint)
