"""Training curves from the metrics in a job's log."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from tpuctl.model.logs.log_metrics import MetricReader, Point, Unit, training_loss

MAX_POINTS = 2_000  # kept per curve
MAX_CURVES = 200
RANK = {"step": 0, "epoch": 1, "line": 2}


@dataclass
class Curve:
    """A metric over the steps, downsampled evenly if there are many.

    Where the log tells no steps, positions are epochs, or count the lines with metrics (`unit`).
    """

    name: str
    points: list[tuple[float, float]] = field(default_factory=list)  # sorted by step, unique
    last: tuple[float, float] | None = None
    non_finite: int = 0  # number of infinite or NaN values
    unit: Unit = "step"
    _every: int = 1
    _seen: int = 0

    def add(self, step: float, value: float) -> None:
        """Add a value. A repeated step (after a restart) drops all later points."""
        if not math.isfinite(value):
            self.non_finite += 1
            return
        while self.points and self.points[-1][0] >= step:
            self.points.pop()
        self.last = (step, value)
        if self._seen % self._every == 0:
            self.points.append((step, value))
        self._seen += 1
        if len(self.points) > 2 * MAX_POINTS:
            self.points = self.points[::2]
            self._every *= 2

    @property
    def all_points(self) -> list[tuple[float, float]]:
        """The points, including the last value."""
        includes_last = not self.points or self.last is None or self.points[-1][0] >= self.last[0]
        return self.points if includes_last else [*self.points, self.last]  # type: ignore[list-item]


class Curves:
    """Collects curves from a log that is fed in chunks, in constant memory."""

    def __init__(self) -> None:
        self._reader = MetricReader()
        self._curves: dict[tuple[str, Unit], Curve] = {}

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the log."""
        self._add(self._reader.feed(data))

    def end(self) -> None:
        """End of an attempt's log: also parse a last line without a newline."""
        self._add(self._reader.end())

    def nonempty(self) -> tuple[Curve, ...]:
        """Curves with points: the loss first, then in the order of the log.

        A metric is shown by step, where the log tells it; otherwise by epoch, or by line.
        """
        curves: dict[str, Curve] = {}
        for curve in self._curves.values():
            other = curves.get(curve.name)
            if curve.points and (other is None or RANK[curve.unit] < RANK[other.unit]):
                curves[curve.name] = curve
        loss = training_loss(curves)
        return tuple(sorted(curves.values(), key=lambda curve: curve.name != loss))

    def of(self, name: str) -> Curve | None:
        return next((curve for curve in self.nonempty() if curve.name == name), None)

    def _add(self, points: Iterable[Point]) -> None:
        for point in points:
            for name, value in point.values.items():
                key = name, point.unit
                if point.position is None or (
                    key not in self._curves and len(self._curves) >= MAX_CURVES
                ):
                    continue
                curve = self._curves.setdefault(key, Curve(name, unit=point.unit))
                curve.add(point.position, value)
