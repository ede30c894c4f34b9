"""Durations as in stack files: 30m, 6h, 2d."""

from __future__ import annotations

__all__ = ["DURATION", "format_duration", "seconds_of"]

DURATION = r"^[0-9]+(\.[0-9]+)?[smhd]$"
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float:
    """Parse a duration that matches DURATION: `30m` is 1800.0."""
    return float(text[:-1]) * SECONDS[text[-1]]


def format_duration(seconds: float) -> str:
    """Format a duration in one or two units: `45 s`, `3 min`, `5 h 20 min`, `2 d 4 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
