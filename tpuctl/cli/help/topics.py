"""The `help` command: help for any command, and for the global options."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tpuctl.cli import responses
from tpuctl.cli.help.commands import COMMANDS, nearest_command
from tpuctl.cli.state import State

OPTIONS = "options"


def register(app: typer.Typer) -> None:
    app.command("help")(show_help)


def _complete_topics(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Completions: a group's commands after its name, otherwise all commands."""
    words = list(ctx.params.get("words") or ())
    if not words:
        return [(name, entry.summary) for name, entry in COMMANDS.items()] + [
            (OPTIONS, "global options")
        ]
    root = ctx.find_root()
    found: Any = root.command.get_command(root, words[0])  # type: ignore[attr-defined]
    return [(name, "") for name in getattr(found, "commands", ())] if len(words) == 1 else []


def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND]...",
            help="Command, such as run or local fault add; or options.",
            autocompletion=_complete_topics,
        ),
    ] = None,
) -> None:
    """Show help for a command, like its --help, or for the global options.

    Example: tpuctl help run
    """
    from tpuctl.cli.help.help_pages import options_page

    state: State = context.obj
    root = context.find_root()
    if words == [OPTIONS]:
        text = options_page(root.command, root)
    else:
        text = _help_page(root, list(words or ()))
    state.answer(lambda: responses.catalog.HelpText(text=text), lambda: print(text))


def _help_page(root: Any, words: list[str]) -> str:
    from tpuctl.errors import Usage

    current, command = root, root.command
    for at, word in enumerate(words):
        subcommands = command.list_commands(current) if hasattr(command, "list_commands") else []
        subcommand = command.get_command(current, word) if word in subcommands else None
        if subcommand is None:
            suggestion = nearest_command(word, [*subcommands, OPTIONS])
            typed = " ".join(["tpuctl help", *words[:at]])
            raise Usage(
                "Unknown command",
                f"there is no command {' '.join(words[: at + 1])}",
                hint=f"Did you mean\n    {typed} {suggestion}"
                if suggestion
                else f"To list all commands:\n    {typed}",
            )
        current = typer.Context(subcommand, info_name=word, parent=current)
        command = subcommand
    text: str = command.get_help(current)
    return text
