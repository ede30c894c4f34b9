"""Validation of arguments and option values."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpuctl.errors import Usage


def require_text(arguments: Sequence[str]) -> None:
    """Raise Usage for arguments that are not valid UTF-8."""
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            detail = f"{argument.encode('utf-8', 'backslashreplace').decode()} is not UTF-8"
            raise Usage("Invalid encoding", detail, hint="Rename the file, or set LC_ALL=C.UTF-8.")


def duration(text: str, option: str) -> float | None:
    """An option's value, such as `90s` or `2h`, in seconds; None if empty."""
    from tpuctl.model.text.duration import DURATION, seconds_of

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
