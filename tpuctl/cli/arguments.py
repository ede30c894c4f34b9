"""Preprocessing and validation of raw command line arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpuctl.errors import Usage

__all__ = ["duration", "hoist", "require_text"]

GLOBAL_FLAGS = {"--json", "--events", "--quiet", "-q", "--verbose", "-v", "--no-color", "--yes"}
GLOBAL_FLAGS |= {"-y"}
GLOBAL_VALUES = {"--stack-file", "--cloud"}


def hoist(arguments: Sequence[str]) -> list[str]:
    """Move global options from anywhere before `--` to the front, where click expects them."""
    front: list[str] = []
    rest: list[str] = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if argument == "--":
            rest += [argument, *waiting]
            break
        if argument in GLOBAL_FLAGS or (
            argument.split("=", 1)[0] in GLOBAL_VALUES and "=" in argument
        ):
            front.append(argument)
        elif argument in GLOBAL_VALUES:
            front += [argument, *waiting[:1]]
            waiting = waiting[1:]
        else:
            rest.append(argument)
    return front + rest


def require_text(arguments: Sequence[str]) -> None:
    """Raise Usage for arguments that are not valid UTF-8."""
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            detail = f"{argument.encode('utf-8', 'backslashreplace').decode()} is not UTF-8"
            raise Usage("Invalid encoding", detail, hint="Rename the file, or set LC_ALL=C.UTF-8.")


def duration(text: str, option: str) -> float | None:
    """An option's value, such as `90s` or `2h`, in seconds; None if empty."""
    from tpuctl.model.duration import DURATION, seconds_of

    if not text:
        return None
    if not re.fullmatch(DURATION, text) or not seconds_of(text):
        raise Usage(
            "Invalid value",
            f"{option}: {text} is not a duration",
            hint="Use a number with s, m, h or d, such as 90s or 2h.",
            where=option,
        )
    return seconds_of(text)
