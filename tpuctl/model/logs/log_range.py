"""The part of a log that the options of `logs` select."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from tpuctl.errors import Usage
from tpuctl.model.text.duration import seconds_of

DURATION_PART = r"[0-9]+(?:\.[0-9]+)?[smhd]"
CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


@dataclass(frozen=True)
class LogRange:
    """Starts at byte `offset`; or the last `lines` lines written after `since`; filtered by
    `pattern`. Lines of several workers are prefixed with the worker if `is_named`.

    `lines` counts line feeds, like `tail`; the pattern is matched against lines that end with a
    line feed, a carriage return, or both.
    """

    offset: int = 0
    lines: int | None = None
    since: datetime | None = None
    pattern: re.Pattern[str] | None = None
    is_named: bool = True

    @property
    def has_offset(self) -> bool:
        """Whether it starts at a known byte offset."""
        return self.lines is None and self.since is None


WHOLE_LOG = LogRange()


def parse_timestamp(text: str, now: datetime) -> datetime:
    """Parse a past time: `10m` (ago), `1h30m`, `2026-11-21T06:14Z`, `2026-11-21`, `06:14`.

    Local time without a time zone; without a date, the most recent such time. Raises Usage.
    """
    try:
        timestamp = _parse_timestamp(text.strip(), now)
    except (ValueError, OverflowError):
        raise Usage(
            "Invalid time",
            f"{text!r} is not a duration, a time of day or a date",
            hint="Pass an age or a time:\n    --since 10m\n    --since 2026-11-21T06:14Z",
            where="--since",
        ) from None
    if timestamp > now:
        when = f"{timestamp:%Y-%m-%d %H:%M:%S %z}"
        raise Usage(
            "Time is in the future",
            f"{text!r} is {when}",
            where="--since",
            hint="Pass a past time, or an age such as --since 10m.",
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
    """Compile a Python regular expression. Raises Usage."""
    try:
        return re.compile(text)
    except re.error as error:
        place = "" if error.pos is None else f", at character {error.pos + 1}"
        raise Usage(
            "Invalid pattern",
            f"{text!r}: {error.msg}{place}",
            hint="It must be a regular expression. To match literal text, escape .^$*+?{}[]\\|()",
            where="--grep",
        ) from None
