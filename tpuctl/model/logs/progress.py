"""A job's progress, from the metrics at the end of its log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from tpuctl.model.logs.log_metrics import MetricReader, Point, training_loss

LINES, TAIL = 50, 1 << 16  # lines and bytes searched at the end of a log


@dataclass(frozen=True)
class Progress:
    """The last value of each key near the end of a log; None if missing."""

    step: int | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    epoch: float | None = None  # only where the log tells no step

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    def after(self, points: Iterable[Point]) -> Progress:
        """The progress after more lines of the log."""
        values: dict[str, Any] = vars(self).copy()
        for point in points:
            if point.position is not None and point.unit != "line":
                values[point.unit] = point.position
            if (loss := training_loss(point.values)) is not None:
                values["loss"] = point.values[loss]
            if "tokens_per_second" in point.values:
                values["tokens_per_second"] = point.values["tokens_per_second"]
        if values["step"] is not None:
            values["epoch"] = None
        return Progress(**values)


def progress_of(log_end: bytes) -> Progress:
    """Parse the end of a log. Truncated lines are ignored."""
    reader = MetricReader(is_whole=False)
    return Progress().after([*reader.feed(log_end), *reader.end()])
