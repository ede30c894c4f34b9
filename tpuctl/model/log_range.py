"""Which part of a log is wanted, as the flags of `logs` say it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from tpuctl.errors import Usage
from tpuctl.model.duration import seconds_of

__all__ = ["WHOLE_LOG", "LogRange", "compile_pattern", "parse_timestamp"]

DURATION_PART = r"[0-9]+(?:\.[0-9]+)?[smhd]"
CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


@dataclass(frozen=True)
class LogRange:
    """From byte `offset` on; or the last `lines` lines of what was written `since` a moment; of
    those lines, the ones in which `pattern` is found. Lines of several workers carry their names
    where `is_named`.

    `lines` counts line feeds, as `tail` does; what the pattern is looked for in ends with a line
    feed, a carriage return, or both.
    """

    offset: int = 0
    lines: int | None = None
    since: datetime | None = None
    pattern: re.Pattern[str] | None = None
    is_named: bool = True

    @property
    def has_offset(self) -> bool:
        """Whether it begins at a byte that is known."""
        return self.lines is None and self.since is None


WHOLE_LOG = LogRange()


def parse_timestamp(text: str, now: datetime) -> datetime:
    """A moment that is past: `10m` (ago), `1h30m`, `2026-11-21T06:14Z`, `2026-11-21`, `06:14`.

    Without a zone it is the local one, without a day the last time that the clock showed it.
    Raises Usage.
    """
    try:
        timestamp = _parse_timestamp(text.strip(), now)
    except (ValueError, OverflowError):
        raise Usage(
            "Not a moment",
            f"{text!r} is neither a length of time nor a time of day or a date",
            hint="Say how long ago, or when\n    --since 10m\n    --since 2026-11-21T06:14Z",
            where="--since",
        ) from None
    if timestamp > now:
        when = f"{timestamp:%Y-%m-%d %H:%M:%S %z}"
        raise Usage(
            "Not past yet",
            f"{text!r} is {when}",
            where="--since",
            hint="Give a moment that has passed, or an age, such as --since 10m.",
        )
    return timestamp


def _parse_timestamp(text: str, now: datetime) -> datetime:
    if re.fullmatch(f"(?:{DURATION_PART})+", text):
        return now - timedelta(seconds=sum(map(seconds_of, re.findall(DURATION_PART, text))))
    if clock := CLOCK.fullmatch(text):
        hour, minute, second = (int(part or 0) for part in clock.groups())
        timestamp = now.astimezone().replace(hour=hour, minute=minute, second=second, microsecond=0)
        return timestamp if timestamp <= now else timestamp - timedelta(days=1)
    return datetime.fromisoformat(text).astimezone()


def compile_pattern(text: str) -> re.Pattern[str]:
    """A regular expression as Python has them. Raises Usage."""
    try:
        return re.compile(text)
    except re.error as error:
        place = "" if error.pos is None else f", at character {error.pos + 1}"
        raise Usage(
            "Pattern cannot be understood",
            f"{text!r}: {error.msg}{place}",
            hint="It is a regular expression; text as it is has a backslash before each of"
            " .^$*+?{}[]\\|()",
            where="--grep",
        ) from None
