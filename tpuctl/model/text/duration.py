"""Durations as in stack files: 30m, 6h, 2d."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

DURATION = r"^[0-9]+(\.[0-9]+)?[smhd]$"
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def moment_of(text: str, now: datetime) -> datetime:
    """The time that a duration from now, or an ISO time, means."""
    if re.fullmatch(DURATION, text):
        return now + timedelta(seconds=seconds_of(text))
    return datetime.fromisoformat(text)


def seconds_of(text: str) -> float:
    """Parse a duration that matches DURATION: `30m` is 1800.0."""
    return float(text[:-1]) * SECONDS[text[-1]]
