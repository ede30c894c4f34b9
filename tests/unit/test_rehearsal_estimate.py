"""Operation counts of steps, and estimates of time and cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.preflight.rehearsal.estimate import (
    PEAK_FLOPS,
    Chips,
    Estimate,
    estimate,
)
from tpuctl.preflight.rehearsal.flop_count import count_operations

# A step as HLO text: a dense layer of 128 to 64 for 32 examples, and the gradient of its weights;
# a convolution in a called computation; placeholders for a loop.
PROGRAM = Path(__file__).parents[1] / "rehearsal" / "step.hlo"
DENSE = 2 * 32 * 128 * 64
CONVOLUTION = 2 * 8 * 16 * 16 * 16 * 3 * 3 * 3
LOOP = "while.8 = (s32[], f32[4,4]{1,0}, /*index=2*/s32[]) while(tuple.2), body=body.7"
HEAVY = (
    "dot.1 = f32[4,4]{1,0} dot(value.1, value.1), lhs_contracting_dims={1}, "
    "rhs_contracting_dims={0}"
)


def program(inside: str = "", around: str = "") -> str:
    return PROGRAM.read_text("utf-8").replace("@inside", inside).replace("@around", around)


def test_operations_are_counted_unless_a_loop_has_some() -> None:
    assert count_operations(program()) == 2 * DENSE + CONVOLUTION
    assert count_operations(program("", LOOP)) == 2 * DENSE + CONVOLUTION
    assert count_operations(program(HEAVY, LOOP)) is None
    assert count_operations(program().replace("kernel.1 = ", "other.1 = ")) is None


@pytest.mark.parametrize("text", ["", "HloModule nothing", "some words\nand { others }"])
def test_invalid_program_has_no_count(text: str) -> None:
    assert count_operations(text) is None


# BERT-base on a v3-8: 1,000,000 steps of 256 sequences of 512 words in 7 days, that is 217,000
# words per second (cl-tohoku/bert-japanese).
LAYERS, WIDTH, LENGTH, BATCH, VOCABULARY, HIDDEN = 12, 768, 512, 256, 32_000, 80
LAYER = 2 * (4 * WIDTH**2 + 2 * WIDTH * 4 * WIDTH) + 2 * 2 * LENGTH * WIDTH
FORWARD = LENGTH * LAYERS * LAYER + HIDDEN * 2 * (WIDTH * VOCABULARY + WIDTH**2)
BERT = 3 * FORWARD * BATCH  # the backward pass takes twice as many as the forward pass


def bert(**more: object) -> Estimate:
    arguments: dict[str, object] = {
        "operations": BERT,
        "program_bytes": 20 << 30,
        "steps": 1_000_000,
        "has_dynamic_shapes": False,
        "has_varying_shapes": False,
    }
    return estimate(Chips("v3", 4, 8.8), **{**arguments, **more})  # type: ignore[arg-type]


def test_estimate_includes_published_speed_of_bert_on_v3_8() -> None:
    result = bert()
    assert result.step_seconds is not None
    best, worst = (BATCH * LENGTH / seconds for seconds in result.step_seconds)
    assert worst < 217_000 < best
    assert result.seconds is not None
    assert result.seconds[0] < 7 * 86400 < result.seconds[1]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"operations": None}, "cannot be counted"),
        ({"operations": 1e9, "program_bytes": 1 << 20}, "too small"),
        ({"program_bytes": 10**14}, "limited by memory bandwidth"),
        ({"has_dynamic_shapes": True}, "dynamic"),
        ({"has_varying_shapes": True}, "vary"),
    ],
)
def test_no_estimate_if_other_factors_dominate(more: dict[str, object], reason: str) -> None:
    result = bert(**more)
    assert result.step_seconds is None
    assert result.seconds is None
    assert reason in result.unavailable_reason


def test_only_what_is_known_is_estimated() -> None:
    result = bert(steps=None)
    assert result.step_seconds is not None
    assert result.seconds is None
    assert result.dollars is None
    result = estimate(
        Chips("v3", 4, None),
        operations=BERT,
        program_bytes=None,
        steps=10,
        has_dynamic_shapes=False,
        has_varying_shapes=False,
    )
    assert result.seconds is not None
    assert result.dollars is None


def test_every_tensorflow_generation_has_peak_performance() -> None:
    from tpuctl.catalog import accelerator_types, runtime_for

    with_tensorflow = {
        accelerator.generation
        for accelerator in accelerator_types().values()
        if (runtime := runtime_for(accelerator)) is not None and runtime.tensorflow
    }
    assert with_tensorflow <= set(PEAK_FLOPS)
