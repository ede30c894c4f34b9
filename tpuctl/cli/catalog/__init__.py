"""The catalog commands: types, zones, runtimes, prices and quota; offline, or with --live."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def register(app: typer.Typer) -> None:
    from tpuctl.cli.catalog.prices import prices
    from tpuctl.cli.catalog.quota import quota
    from tpuctl.cli.catalog.runtimes import runtimes
    from tpuctl.cli.catalog.types import types
    from tpuctl.cli.catalog.zones import zones
    from tpuctl.cli.parameters.option_groups import expand_option_groups

    for command in (types, zones, runtimes, prices, quota):
        app.command(rich_help_panel="Catalog")(expand_option_groups(command))
