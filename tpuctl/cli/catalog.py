"""Commands for the catalogue, offline: types, zones, runtimes, prices."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.app import State
from tpuctl.cli.known import require_type, require_zone
from tpuctl.cli.prices import prices

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
    require_zone(zone)
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
    require_type(accelerator)
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
    require_type(accelerator)
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
