"""Parse tpuctl's command lines without running them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from tpuctl.cli.app import command_line
from tpuctl.cli.state import State

_root = cache(command_line)  # shared: loading the modules of commands takes most of the time


def parse(words: Sequence[str]) -> Any:
    """The context of the named command. Raises the parser's error for invalid words."""
    command: Any = _root()
    context: Any = command.make_context("tpuctl", [*words], obj=State())
    while hasattr(command, "commands") and (rest := [*context._protected_args, *context.args]):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return context
