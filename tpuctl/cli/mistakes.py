"""What was typed and cannot be meant: said, with what probably was."""

from __future__ import annotations

import re
from typing import Any

from tpuctl.cli.commands import nearest_command
from tpuctl.cli.state import State
from tpuctl.errors import Diagnostic

__all__ = ["usage_problem"]

NO_COMMAND = re.compile(r"No such command '(.*?)'")


def usage_problem(error: Any, state: State) -> Diagnostic:
    """A parser's complaint in our words, with the nearest command, option or value."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "tpuctl"
    if context is not None and context.parent is not None and not state.command:
        state.command = path.partition(" ")[2]  # nothing ran that would have noted it
    detail, meant = _complaint(error, context, path)
    hint = f"Did you mean\n    {meant}\n" if meant else ""
    hint += f"See how it is used:\n    {path} --help"
    if path == "tpuctl run":
        hint = f"What is the script's own goes after --\n    tpuctl run SCRIPT -- ARGUMENTS\n{hint}"
    return Diagnostic("Wrong usage", detail, hint)


def _complaint(error: Any, context: Any, path: str) -> tuple[str, str]:
    """What is wrong, and how it was probably meant, if anybody can tell."""
    message = error.format_message().replace("Value error, ", "")
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        like = _nearest(option, _options(context))
        return f"{path} has no option {option}", f"{path} {like}" if like else ""
    if context is not None and (found := NO_COMMAND.match(message)):
        like = nearest_command(found[1], context.command.list_commands(context)) or ""
        name = f"{path} {found[1]}".partition(" ")[2]
        return f"there is no command {name}", f"{path} {like}" if like else ""
    parameter = getattr(error, "param", None)
    choices = _choices(parameter)
    given = re.search(r": '(.*)' is not one of", message)
    if parameter is not None and choices and given:
        name = parameter.opts[0]
        like = _nearest(given[1], choices)
        detail = f"{name} cannot be {given[1]}: it is {' or '.join(choices)}"
        return detail, f"{path} {name} {like}" if like else ""
    return message, ""


def _options(context: Any) -> list[str]:
    here, names = context, []
    while here is not None:
        names += [name for one in here.command.get_params(here) for name in one.opts]
        here = here.parent
    return [name for name in names if name.startswith("--")]


def _choices(parameter: Any) -> list[str]:
    described = getattr(parameter, "type_descriptor", None)
    found = described.choices if described is not None else None
    return [str(getattr(one, "value", one)) for one in found or ()]


def _nearest(word: str, known: list[str]) -> str:
    from tpuctl.catalog import nearest

    bare = {one.lstrip("-"): one for one in known}
    return next((bare[one] for one in nearest(word.lstrip("-"), bare, 1)), "")
