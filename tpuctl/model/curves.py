"""The numbers of a job over its steps, as its log tells them: lines that are one JSON object each.

{"step": 1200, "loss": 2.31, "tokens_per_second": 45210}
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

__all__ = ["Curve", "Curves"]

LONGEST = 1 << 16  # bytes of a line; longer ones tell nothing
MOST = 2_000  # points of a curve that are kept


@dataclass
class Curve:
    """One number over the steps, thinned evenly where there are very many."""

    name: str
    points: list[tuple[int, float]] = field(default_factory=list)  # by step, each step once
    last: tuple[int, float] | None = None
    unfinite: int = 0  # how many values were infinite or not a number
    _every: int = 1
    _seen: int = 0

    def add(self, step: int, value: float) -> None:
        """Take a value. A step that was there already is done again: what came after it goes."""
        if not math.isfinite(value):
            self.unfinite += 1
            return
        while self.points and self.points[-1][0] >= step:
            self.points.pop()
        self.last = (step, value)
        if self._seen % self._every == 0:
            self.points.append((step, value))
        self._seen += 1
        if len(self.points) > 2 * MOST:
            self.points = self.points[::2]
            self._every *= 2

    @property
    def shown(self) -> list[tuple[int, float]]:
        """The points, the last value among them."""
        is_there = not self.points or self.last is None or self.points[-1][0] >= self.last[0]
        return self.points if is_there else [*self.points, self.last]  # type: ignore[list-item]


class Curves:
    """Collects curves from a log that is handed over piece by piece, in constant memory."""

    def __init__(self) -> None:
        self._found: dict[str, Curve] = {}
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take further bytes of the log."""
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) > LONGEST:
            self._rest = b"\0" * (LONGEST + 1)  # no object begins so
        for line in lines:
            self._take(line)

    def end(self) -> None:
        """The log, or an attempt's, is over: what has no line end is a line too."""
        self._take(self._rest)
        self._rest = b""

    def found(self) -> tuple[Curve, ...]:
        """Those with any point: the loss first, then in the order in which the log has them."""
        known = [one for one in self._found.values() if one.points]
        return tuple(sorted(known, key=lambda one: one.name != "loss"))

    def of(self, name: str) -> Curve | None:
        return next((one for one in self.found() if one.name == name), None)

    def _take(self, line: bytes) -> None:
        line = line.strip()
        if len(line) > LONGEST or not (line.startswith(b"{") and line.endswith(b"}")):
            return
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            return
        step = said.pop("step", None)
        if isinstance(step, bool) or not isinstance(step, int):
            return
        for name, value in said.items():
            if not isinstance(value, bool) and isinstance(value, int | float):
                number = float(value) if isinstance(value, float) else _of_integer(value)
                self._found.setdefault(name, Curve(name)).add(step, number)


def _of_integer(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
