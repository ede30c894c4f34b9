"""A curve drawn with characters, for a terminal of any width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.model.logs.curves import Curve

# The dots of a Braille character, by column and row from the top (Unicode block U+2800).
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
Point = tuple[float, float]


def draw(
    points: Sequence[Point], *, width: int = 72, height: int = 8, plain: bool = False
) -> list[str]:
    """Lines of text with the curve, its bounds on the left and the first and last step below.

    `plain` keeps to ASCII. Where several points share a column their mean is drawn.
    """
    if not points:
        return []
    low, high = min(y for _, y in points), max(y for _, y in points)
    labels = [number(high), number(low)] if high > low else ["", number(low)]
    margin = max(map(len, labels)) + 1
    columns = max(10, width - margin - 2)
    across, down = (1, 1) if plain else (2, 4)
    means = _means(points, columns * across)
    rows = height * down
    marks: dict[tuple[int, int], int] = {}
    before: int | None = None
    for place, value in enumerate(means):
        if value is None:
            continue
        level = round((high - value) / (high - low) * (rows - 1)) if high > low else rows // 2
        # Fill between neighbors, so that steep changes are a connected line.
        start = level if before is None else before
        for row in range(min(level, start), max(level, start) + 1):
            bit = DOTS[place % 2][row % 4] if not plain else 1
            cell = (row // down, place // across)
            marks[cell] = marks.get(cell, 0) | bit
        before = level
    lines = []
    for row in range(height):
        label = labels[0] if row == 0 else labels[1] if row == height - 1 else ""
        drawn = "".join(_cell(marks.get((row, column), 0), plain) for column in range(columns))
        lines.append(f"{label:>{margin - 1}} {'|' if plain else '┤'}{drawn}".rstrip())
    first, last = position_text(points[0][0]), position_text(points[-1][0])
    lines.append(f"{'':{margin + 1}}{first:<{columns - len(last)}}{last}")
    return lines


def _cell(bits: int, plain: bool) -> str:
    if plain:
        return "*" if bits else " "
    return chr(0x2800 + bits) if bits else " "


def _means(points: Sequence[Point], count: int) -> list[float | None]:
    """The mean in each of `count` columns, with gaps interpolated linearly."""
    first, last = points[0][0], points[-1][0]
    sums, numbers = [0.0] * count, [0] * count
    for x, y in points:
        place = round((x - first) / (last - first) * (count - 1)) if last > first else 0
        sums[place] += y
        numbers[place] += 1
    means = [
        total / number if number else None for total, number in zip(sums, numbers, strict=True)
    ]
    filled = [place for place, value in enumerate(means) if value is not None]
    for left, other in pairwise(filled):
        for place in range(left + 1, other):
            begin, end = means[left], means[other]
            assert begin is not None and end is not None
            means[place] = begin + (end - begin) * (place - left) / (other - left)
    return means


def position_word(curve: Curve, position: float) -> str:
    """`step 1,200`, `epoch 1.5`, or `line 12` of those with metrics."""
    return f"{curve.unit} {position_text(position)}"


def position_text(position: float) -> str:
    """A number of steps or epochs."""
    return f"{position:,.0f}" if position == int(position) else f"{position:.3g}"


def number(value: float) -> str:
    """A short form: 2.31, 45,210, 1e-05."""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e9):
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
