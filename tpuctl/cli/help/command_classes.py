"""The classes of commands and groups: our help pages, and values without needless conversion."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from tpuctl.cli.help.help_pages import command_page, summary_of

F = TypeVar("F", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command with our help page."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(command_page(self, ctx))

    def get_short_help_str(self, limit: int = 0) -> str:
        return summary_of(self)

    def invoke(self, ctx: Any) -> Any:
        """Record the command's name, without `tpuctl`, in the state; show a bare group's help."""
        names = [*ctx.command_path.split()[1:], ctx.invoked_subcommand or ""]
        ctx.obj.command = " ".join(names).strip()
        if self.callback is None and ctx.invoked_subcommand is None:
            typer.echo(ctx.get_help())
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse like Typer, but leave values alone that need no conversion.

        Typer converts with pydantic, which takes 0.2 s to import.
        """
        values, rest, order = self.make_parser(ctx).parse_args(args)
        parameters: dict[Any, None] = dict.fromkeys([*order, *self.get_params(ctx)])
        for parameter in sorted(parameters, key=lambda parameter: not parameter.is_eager):
            value = _value(parameter, ctx, values)
            if parameter.expose_value:
                ctx.params[parameter.name] = value
        if rest and not ctx.allow_extra_args and not ctx.resilient_parsing:
            from tpuctl.view.terminal.text_wrapping import plain

            ctx.fail(f"Got unexpected extra argument(s) ({plain(' '.join(rest))})")
        ctx.args = rest
        return rest


def _value(parameter: Any, ctx: Any, values: dict[str, Any]) -> Any:
    """The parameter's value. Completion (resilient parsing) uses texts as they were typed."""
    value, source = parameter.consume_value(ctx, values)
    ctx.set_parameter_source(parameter.name, source)
    if ctx.resilient_parsing or (value is None and not parameter.required):
        return value
    if value is not None and parameter.callback is None:
        kind = parameter.type_descriptor.annotation
        is_list = get_origin(kind) is list
        element = get_args(kind)[0] if is_list else kind
        if source.name == "DEFAULT" or element is str:
            return value
        if isinstance(element, type) and issubclass(element, Path | StrEnum):
            with suppress(ValueError):
                return [element(part) for part in value] if is_list else element(value)
    return parameter.process_value(ctx, value)


class Group(TyperGroup, Command):
    """A group of commands with our help page."""

    format_help = Command.format_help

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # completion looks up the commands in ctx.args
            return Command.parse_args(self, ctx, args)
        return super().parse_args(ctx, args)


class App(typer.Typer):
    """A Typer application with these classes of commands and groups."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": Group, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        return super().command(name, **{"cls": Command, **settings})
