"""Training curves from a job's log, whose lines are JSON objects such as:

{"step": 1200, "loss": 2.31, "tokens_per_second": 45210}
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

__all__ = ["Curve", "Curves"]

MAX_LINE_BYTES = 1 << 16  # bytes longer lines are ignored
MAX_POINTS = 2_000  # kept per curve


@dataclass
class Curve:
    """A metric over the steps, downsampled evenly if there are many."""

    name: str
    points: list[tuple[int, float]] = field(default_factory=list)  # sorted by step, unique
    last: tuple[int, float] | None = None
    non_finite: int = 0  # number of infinite or NaN values
    _every: int = 1
    _seen: int = 0

    def add(self, step: int, value: float) -> None:
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
    def all_points(self) -> list[tuple[int, float]]:
        """The points, including the last value."""
        includes_last = not self.points or self.last is None or self.points[-1][0] >= self.last[0]
        return self.points if includes_last else [*self.points, self.last]  # type: ignore[list-item]


class Curves:
    """Collects curves from a log that is fed in chunks, in constant memory."""

    def __init__(self) -> None:
        self._curves: dict[str, Curve] = {}
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the log."""
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b"\0" * (MAX_LINE_BYTES + 1)  # not a JSON object
        for line in lines:
            self._take(line)

    def end(self) -> None:
        """End of the log: also parse a last line without a newline."""
        self._take(self._rest)
        self._rest = b""

    def nonempty(self) -> tuple[Curve, ...]:
        """Curves with points: the loss first, then in the order of the log."""
        curves = [curve for curve in self._curves.values() if curve.points]
        return tuple(sorted(curves, key=lambda curve: curve.name != "loss"))

    def of(self, name: str) -> Curve | None:
        return next((curve for curve in self.nonempty() if curve.name == name), None)

    def _take(self, line: bytes) -> None:
        line = line.strip()
        if len(line) > MAX_LINE_BYTES or not (line.startswith(b"{") and line.endswith(b"}")):
            return
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            return
        step = values.pop("step", None)
        if isinstance(step, bool) or not isinstance(step, int):
            return
        for name, value in values.items():
            if not isinstance(value, bool) and isinstance(value, int | float):
                number = float(value) if isinstance(value, float) else _of_integer(value)
                self._curves.setdefault(name, Curve(name)).add(step, number)


def _of_integer(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
