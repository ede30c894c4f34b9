"""Command classes that render our help pages and start quickly."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from tpuctl.cli.fast_parameters import use_fast_values
from tpuctl.cli.help_pages import command_page

__all__ = ["Command", "Group"]


class _HelpMixin:
    """Renders our help page."""

    def get_help(self, ctx: Any) -> str:
        return command_page(self, ctx)

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            use_fast_values(option)  # created per command on first use
        return option


class Command(_HelpMixin, TyperCommand):
    """A command with our help page."""


class Group(_HelpMixin, TyperGroup):
    """A command group with our help page."""
