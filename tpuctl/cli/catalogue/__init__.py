"""The commands of the catalogue: types, zones, runtimes, prices, quota; offline, or asked live."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    from tpuctl.cli.catalogue.prices import prices
    from tpuctl.cli.catalogue.quota import quota
    from tpuctl.cli.catalogue.runtimes import runtimes
    from tpuctl.cli.catalogue.types import types
    from tpuctl.cli.catalogue.zones import zones

    for command in (types, zones, runtimes, prices, quota):
        app.command(rich_help_panel="Catalogue")(command)
