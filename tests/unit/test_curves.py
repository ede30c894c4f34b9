"""Curves: metrics of a log by step, downsampled, and drawn with characters."""

from __future__ import annotations

import json
import random

import pytest

from tpuctl.model.logs.curves import Curves
from tpuctl.view.jobs.curves import draw


def curves_of(*lines: bytes) -> Curves:
    curves = Curves()
    curves.feed(b"".join(lines))
    curves.end()
    return curves


def line(**values: object) -> bytes:
    return json.dumps(values).encode() + b"\n"


def test_metrics_are_found_among_other_lines() -> None:
    curves = curves_of(
        b"Epoch 1/3\n",
        line(step=1, loss=4.5, note="begin", flag=True, tokens_per_second=100),
        b"{not json}\n\xff\xfe\n[1, 2]\n",
        line(loss=9.0),  # without a step
        line(step=2, loss=4.25, tokens_per_second=110.5),
    ).nonempty()
    assert [curve.name for curve in curves] == ["loss", "tokens_per_second"]
    assert curves[0].all_points == [(1, 4.5), (2, 4.25)]
    assert curves[1].all_points == [(1, 100.0), (2, 110.5)]


def test_chunk_boundaries_do_not_matter() -> None:
    log = b"".join(line(step=number, loss=1 / number) for number in range(1, 200))
    whole = curves_of(log).of("loss")
    chance = random.Random(7)
    cut = Curves()
    while log:
        size = chance.randrange(1, 40)
        cut.feed(log[:size])
        log = log[size:]
    cut.end()
    curve = cut.of("loss")
    assert whole is not None and curve is not None
    assert curve.all_points == whole.all_points


def test_repeated_steps_count_once_and_non_finite_values_are_dropped() -> None:
    first = [line(step=number, loss=10 - number) for number in range(1, 8)]
    again = [line(step=number, loss=20 - number) for number in range(5, 10)]
    curve = curves_of(*first, *again).of("loss")
    assert curve is not None
    assert [step for step, _ in curve.all_points] == list(range(1, 10))
    assert dict(curve.all_points)[4] == 6
    assert dict(curve.all_points)[5] == 15
    curves = curves_of(
        line(step=1, loss=3.0), b'{"step": 2, "loss": NaN}\n', b'{"step": 3, "loss": Infinity}\n'
    ).of("loss")
    assert curves is not None
    assert (curves.all_points, curves.non_finite) == ([(1, 3.0)], 2)


def test_long_run_is_downsampled_with_last_value() -> None:
    curve = curves_of(*(line(step=number, loss=number) for number in range(30_001))).of("loss")
    assert curve is not None
    assert len(curve.all_points) < 5_000
    assert curve.all_points[0] == (0, 0)
    assert curve.all_points[-1] == (30_000, 30_000)
    steps = [step for step, _ in curve.all_points]
    assert steps == sorted(set(steps))


def test_long_lines_use_bounded_memory() -> None:
    curves = Curves()
    for _ in range(100):
        curves.feed(b"{" + b"x" * 100_000)
    assert len(curves._reader._rest) < 300_000
    curves.feed(b"\n" + line(step=1, loss=2))
    curves.end()
    curve = curves.of("loss")
    assert curve is not None and curve.all_points == [(1, 2)]


@pytest.mark.parametrize("width", [20, 80, 200])
@pytest.mark.parametrize("plain", [False, True])
def test_decreasing_values_are_drawn_falling(width: int, plain: bool) -> None:
    drawn = draw([(step, 100 - step) for step in range(101)], width=width, height=5, plain=plain)
    assert max(map(len, drawn)) <= width
    assert drawn[0].startswith("100 ") and drawn[4].lstrip().startswith("0 ")
    assert drawn[5].split() == ["0", "100"]
    edge = "|" if plain else "┤"
    marks = [row.partition(edge)[2] for row in drawn[:5]]
    begins = [len(row) - len(row.lstrip()) for row in marks]
    assert begins == sorted(begins) and begins[0] < begins[-1]
    assert plain == all(row.isascii() for row in drawn)


@pytest.mark.parametrize("points", [[(5, 1.5)], [(1, 2.0), (9, 2.0)]])
def test_constant_curve_is_in_the_middle(points: list[tuple[float, float]]) -> None:
    drawn = draw(points, height=3, plain=True)
    assert "*" not in drawn[0] and "*" in drawn[1] and "*" not in drawn[2].partition("|")[2]


def test_empty_curve_is_not_drawn() -> None:
    assert draw([]) == []
