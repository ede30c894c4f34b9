"""What commands are made of, so that all of them show help of ours and start quickly."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from tpuctl.cli.fast_parameters import use_fast_values
from tpuctl.cli.help_pages import command_page

__all__ = ["Command", "Group"]


class _HelpMixin:
    """Help of ours, on a command or a group."""

    def get_help(self, ctx: Any) -> str:
        return command_page(self, ctx)

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            use_fast_values(option)  # made for each command when it is asked for
        return option


class Command(_HelpMixin, TyperCommand):
    """A command with help of ours."""


class Group(_HelpMixin, TyperGroup):
    """Commands under one name, with help of ours."""
