"""Which values of metrics and arguments `jobs compare` puts side by side."""

from __future__ import annotations

from tpuctl.model.jobs.comparison import argument_rows, metric_rows
from tpuctl.model.logs.curves import Curve, Curves


def curve(name: str, *points: tuple[int, float]) -> Curve:
    curves = Curves()
    for step, value in points:
        curves.feed(f'{{"step": {step}, "{name}": {value}}}\n'.encode())
    logged = curves.of(name)
    assert logged is not None
    return logged


def test_options_in_any_spelling_share_a_row() -> None:
    rows = argument_rows([["--lr=1", "data", "--fast"], ["--lr", "-2", "--shift", "x"], []])
    assert {row.name: row.values for row in rows} == {
        "arguments": ("data", None, None),
        "--lr": ("1", "-2", None),
        "--fast": ("yes", None, None),
        "--shift": (None, "x", None),
    }


def test_values_at_the_last_common_step() -> None:
    slow = curve("val_loss", (10, 4.0), (20, 1.0), (30, 2.0))
    fast = curve("val_loss", (20, 3.0), (30, 0.5), (40, 7.0))
    rows = metric_rows("val_loss", [slow, None, fast])
    assert {row.name: row.values for row in rows} == {
        "val loss at step 30": (2.0, None, 0.5),
        "lowest val loss until step 30": (1.0, None, 0.5),
        "val loss at the end": (2.0, None, 7.0),
    }
    # Without one, at the end.
    rows = metric_rows("norm", [curve("norm", (1, 5.0)), curve("norm", (2, 6.0))])
    assert {row.name: row.values for row in rows} == {"norm at the end": (5.0, 6.0)}


def test_best_value_only_where_the_name_tells() -> None:
    names = {
        name: {row.name for row in metric_rows(name, [curve(name, (1, 5.0))])}
        for name in ("top1_accuracy", "tokens_per_second", "seconds_per_step", "grad_norm")
    }
    assert names == {
        "top1_accuracy": {"top1 accuracy at step 1", "highest top1 accuracy until step 1"},
        "tokens_per_second": {
            "tokens per second at step 1",
            "highest tokens per second until step 1",
        },
        "seconds_per_step": {"seconds per step at step 1"},
        "grad_norm": {"grad norm at step 1"},
    }
