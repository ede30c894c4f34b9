"""Errors for unknown commands, options and names, with suggestions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from tpuctl.cli.help.commands import nearest_command
from tpuctl.errors import Diagnostic

if TYPE_CHECKING:
    from tpuctl.catalog import AcceleratorType

NO_COMMAND = re.compile(r"No such command '(.*?)'")


def require_type(name: str) -> AcceleratorType:
    """The type that a name means; for a generation, its smallest. Raises Usage."""
    from tpuctl.catalog import type_named

    accelerator = type_named(name)
    if accelerator is None:
        raise unknown_type(name)
    return accelerator


def require_types(text: str) -> tuple[str, ...] | None:
    """The types that `v3-8`, `v5e`, `v6e-*` or a comma-separated list name; None if empty."""
    from tpuctl.catalog import accelerator_types, matching, type_pattern

    found: list[str] = []
    for word in _words(text):
        matches = matching(type_pattern(word), accelerator_types())
        if not matches:
            raise unknown_type(word)
        found += matches
    return tuple(dict.fromkeys(found)) or None


def require_generations(text: str) -> tuple[str, ...] | None:
    from tpuctl.catalog import announced_tpu, canonical_type, generations, matching

    found: list[str] = []
    for word in _words(text):
        if announced_tpu(word) is not None:
            raise unknown_type(word)
        matches = matching(canonical_type(word), generations())
        if not matches:
            hint = f"Valid values: {', '.join(generations())}."
            raise _unknown_error("TPU generation", f"there is no generation {word}", hint)
        found += matches
    return tuple(dict.fromkeys(found)) or None


def require_zones(
    text: str, known_zones: Collection[str], *, takes_region: bool = True
) -> tuple[str, ...] | None:
    """The known zones that the text names; None if empty. Not every command `takes_region`."""
    from tpuctl.catalog import region_of

    for word in _words(text):
        if any(region_of(zone) == word for zone in known_zones):
            hint = f"Pass a zone, or the region:\n    --region {word}"
            if not takes_region:
                hint = (
                    f"Pass a zone. To list those of the region:\n    tpuctl zones --region {word}"
                )
            raise _unknown_error("zone", f"{word} is a region", hint)
    return _match_all(text, "zone", "no TPU is offered in {}", known_zones, "tpuctl zones")


def require_regions(text: str, known_zones: Collection[str]) -> tuple[str, ...] | None:
    """The regions of known zones that the text names; None if empty."""
    from tpuctl.catalog import region_of

    names = sorted({region_of(zone) for zone in known_zones})
    return _match_all(
        text, "region", "no TPU is offered in {}", names, "tpuctl zones --sort region"
    )


def _words(text: str) -> list[str]:
    return [word for part in text.lower().split(",") if (word := part.strip())]


def _match_all(
    text: str, noun: str, detail: str, candidates: Collection[str], command: str = ""
) -> tuple[str, ...] | None:
    from tpuctl.catalog import matching

    found: list[str] = []
    for word in _words(text):
        matches = matching(word, candidates)
        if not matches:
            raise _unknown(noun, detail.format(word), word, candidates, command)
        found += matches
    return tuple(dict.fromkeys(found)) or None


def unknown_type(name: str) -> Exception:
    """That there is no such type, with those of the same generation that it may mean."""
    from tpuctl.catalog import announced_tpu, generations, nearest_types
    from tpuctl.errors import Usage

    if announced := announced_tpu(name):
        return Usage(
            "TPU type not sold yet", str(announced), hint="To list types:\n    tpuctl types"
        )
    detail = f"there is no type {'' if '-' in name else 'or generation '}{name}"
    if like := nearest_types(name):
        return _unknown_error("TPU type", detail, f"Did you mean {', '.join(like)}?")
    hint = f"Generations: {', '.join(generations())}. To list all types:\n    tpuctl types"
    return _unknown_error("TPU type", detail, hint)


def _unknown(
    noun: str, detail: str, name: str, candidates: Iterable[str], command: str = ""
) -> Exception:
    from tpuctl.spelling import nearest

    names = list(candidates)
    like = nearest(name, names)
    if like:
        return _unknown_error(noun, detail, f"Did you mean {', '.join(like)}?")
    hint = f"To list all:\n    {command}" if command else f"Valid values: {', '.join(names)}."
    return _unknown_error(noun, detail, hint)


def _unknown_error(noun: str, detail: str, hint: str) -> Exception:
    from tpuctl.errors import Usage

    return Usage(f"Unknown {noun}", detail, hint=hint)


def usage_diagnostic(error: Any) -> Diagnostic:
    """A parser error as a diagnostic, with the nearest command, option or value."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "tpuctl"
    detail, suggestion = _describe(error, context, path)
    hint = f"Did you mean\n    {suggestion}\n" if suggestion else ""
    if path == "tpuctl run":
        hint += "Put the script's arguments after --\n    tpuctl run SCRIPT -- ARGUMENTS\n"
    hint += f"For help:\n    {path} --help"
    return Diagnostic("Invalid usage", detail, hint)


def _describe(error: Any, context: Any, path: str) -> tuple[str, str]:
    """What is wrong, and the suggested command if there is one."""
    message = error.format_message().replace("Value error, ", "")
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        like = _nearest(option, _options(context))
        return f"{path} has no option {option}", f"{path} {like}" if like else ""
    if context is not None and (match := NO_COMMAND.match(message)):
        like = nearest_command(match[1], context.command.list_commands(context)) or ""
        name = f"{path} {match[1]}".partition(" ")[2]
        return f"there is no command {name}", f"{path} {like}" if like else ""
    parameter = getattr(error, "param", None)
    choices = _choices(parameter)
    invalid_value = re.search(r": '(.*)' is not one of", message)
    if parameter is not None and choices and invalid_value:
        name = parameter.opts[0]
        like = _nearest(invalid_value[1], choices)
        detail = f"{name} cannot be {invalid_value[1]}: choose {' or '.join(choices)}"
        return detail, f"{path} {name} {like}" if like else ""
    return message, ""


def _options(context: Any) -> list[str]:
    current, names = context, []
    while current is not None:
        names += [
            name for parameter in current.command.get_params(current) for name in parameter.opts
        ]
        current = current.parent
    return [name for name in names if name.startswith("--")]


def _choices(parameter: Any) -> list[str]:
    described = getattr(parameter, "type_descriptor", None)
    values = described.choices if described is not None else None
    return [str(getattr(value, "value", value)) for value in values or ()]


def _nearest(word: str, candidates: list[str]) -> str:
    from tpuctl.spelling import nearest

    bare = {candidate.lstrip("-"): candidate for candidate in candidates}
    return next((bare[candidate] for candidate in nearest(word.lstrip("-"), bare, 1)), "")
