"""A job's progress, from log lines that are JSON objects.

A training loop that regularly prints such a line is shown with its step, loss and speed:

    {"step": 1200, "loss": 2.31, "tokens_per_second": 45210}
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["LINES", "TAIL", "Progress", "progress_of"]

LINES, TAIL = 50, 1 << 16  # lines and bytes searched at the end of a log


@dataclass(frozen=True)
class Progress:
    """The last value of each key near the end of a log; None if missing."""

    step: int | None = None
    loss: float | None = None
    tokens_per_second: float | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))


def progress_of(log_end: bytes) -> Progress:
    """Parse the end of a log. Truncated lines are ignored."""
    values: dict[str, Any] = {}
    for line in reversed(log_end.replace(b"\r", b"\n").split(b"\n")):
        stripped = line.strip()
        if not (stripped.startswith(b"{") and stripped.endswith(b"}")):
            continue
        try:
            record = json.loads(stripped)
        except (ValueError, RecursionError):
            continue
        for key, kind in (("step", int), ("loss", float), ("tokens_per_second", float)):
            if key not in values and (value := _number(record.get(key), kind)) is not None:
                values[key] = value
        if len(values) == len(fields(Progress)):
            break
    return Progress(**values)


def _number(value: Any, kind: type[int] | type[float]) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if kind is int:
        return int(value) if math.isfinite(value) and value == int(value) else None
    try:
        return float(value)
    except OverflowError:
        return None
