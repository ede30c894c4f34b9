"""What was typed and is not known (a command, option, name), refused with the nearest match."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from tpuctl.cli.commands import nearest_command
from tpuctl.errors import Diagnostic

__all__ = [
    "require_generations",
    "require_regions",
    "require_type",
    "require_types",
    "require_zones",
    "usage_problem",
]
NO_COMMAND = re.compile(r"No such command '(.*?)'")


def require_type(name: str) -> None:
    from tpuctl.catalog import accelerator_types

    if name and name not in accelerator_types():
        raise _unknown_type(name)


def require_types(text: str) -> tuple[str, ...] | None:
    """The types that `v3-8`, `v5e`, `v6e-*` or several with commas name; None for no text."""
    from tpuctl.catalog import accelerator_types, generations, matching

    known = accelerator_types()
    found: list[str] = []
    for word in _words(text):
        if word in generations():
            found += (one.name for one in known.values() if one.generation == word)
            continue
        named = matching(word, known)
        if not named:
            raise _unknown_type(word)
        found += named
    return tuple(dict.fromkeys(found)) or None


def require_generations(text: str) -> tuple[str, ...] | None:
    from tpuctl.catalog import generations

    return _all_of(text, "TPU generation", "there is no generation {}", generations())


def require_zones(text: str, known: Collection[str]) -> tuple[str, ...] | None:
    """Those of the known zones that the text names; None for no text."""
    from tpuctl.catalog import region_of

    for word in _words(text):
        if any(region_of(zone) == word for zone in known):
            hint = f"Give a zone of it, or the region:\n    --region {word}"
            raise _refusal("zone", f"{word} is a region", hint)
    return _all_of(text, "zone", "no TPU is offered in {}", known, "tpuctl zones")


def require_regions(text: str, known: Collection[str]) -> tuple[str, ...] | None:
    """The regions of known zones that the text names; None for no text."""
    from tpuctl.catalog import region_of

    names = sorted({region_of(zone) for zone in known})
    return _all_of(text, "region", "no TPU is offered in {}", names, "tpuctl zones --sort region")


def _words(text: str) -> list[str]:
    return [word for part in text.lower().split(",") if (word := part.strip())]


def _all_of(
    text: str, what: str, detail: str, known: Collection[str], command: str = ""
) -> tuple[str, ...] | None:
    from tpuctl.catalog import matching

    found: list[str] = []
    for word in _words(text):
        named = matching(word, known)
        if not named:
            raise _unknown(what, detail.format(word), word, known, command)
        found += named
    return tuple(dict.fromkeys(found)) or None


def _unknown_type(name: str) -> Exception:
    from tpuctl.catalog import accelerator_types, generations

    known = accelerator_types()
    if name.startswith("v5e-") and (meant := f"v5litepod-{name[4:]}") in known:
        return _refusal("TPU type", f"there is no type {name}", f"Did you mean {meant}?")
    if "-" not in name:  # meant as a generation
        hint = f"There are {', '.join(generations())}, and types of them:\n    tpuctl types"
        return _refusal("TPU type", f"there is no type or generation {name}", hint)
    return _unknown("TPU type", f"there is no type {name}", name, known, "tpuctl types")


def _unknown(
    what: str, detail: str, name: str, known: Iterable[str], command: str = ""
) -> Exception:
    from tpuctl.spelling import nearest

    names = list(known)
    like = nearest(name, names)
    if like:
        return _refusal(what, detail, f"Did you mean {', '.join(like)}?")
    hint = f"All of them:\n    {command}" if command else f"There are {', '.join(names)}."
    return _refusal(what, detail, hint)


def _refusal(what: str, detail: str, hint: str) -> Exception:
    from tpuctl.errors import Usage

    return Usage(f"Unknown {what}", detail, hint=hint)


def usage_problem(error: Any) -> Diagnostic:
    """A parser's complaint in our words, with the nearest command, option or value."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "tpuctl"
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
    from tpuctl.spelling import nearest

    bare = {one.lstrip("-"): one for one in known}
    return next((bare[one] for one in nearest(word.lstrip("-"), bare, 1)), "")
