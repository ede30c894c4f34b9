"""Estimates the duration and cost of the whole run on the TPU, as a range.

The duration of a step on this machine's CPU does not predict that on a TPU, but the number of
floating-point operations carries over. Divided by the chips' published peak performance, times the
utilization that training usually reaches, it gives a range. If the step is not compute-bound, there
is no estimate, only the reason.

Published reference: BERT-base trained on a v3-8 at 217,000 tokens per second (1,000,000 steps of
256 sequences of 512 words in 7 days; cl-tohoku/bert-japanese), a quarter of the peak.
"""

from __future__ import annotations

from dataclasses import dataclass

# FLOP/s per chip in bfloat16, which TensorFlow's matrix multiplications on a TPU also use for
# float32 (docs.cloud.google.com/tpu/docs, the page of each generation, read 2026-11).
PEAK_FLOPS = {
    "v2": 45e12,
    "v3": 123e12,
    "v4": 275e12,
    "v5e": 197e12,
    "v5p": 459e12,
    "v6e": 918e12,
    "tpu7x": 2307e12,
}
UTILIZATION = (0.15, 0.5)  # of the peak, in compute-bound training
MIN_STEP_SECONDS = 0.002  # in the best case; shorter steps take as long to launch
MIN_INTENSITY = 50.0  # operations per byte of the program; below that, a step is memory-bound


@dataclass(frozen=True)
class Chips:
    """The chips that the run will use."""

    generation: str
    chips: int
    per_hour: float | None  # US dollars for all chips; None if the price is unknown


@dataclass(frozen=True)
class Estimate:
    """Lower and upper bounds for the whole run, or the reason why there are none."""

    unavailable_reason: str = ""
    step_seconds: tuple[float, float] | None = None
    seconds: tuple[float, float] | None = None  # None if the number of steps is unknown
    dollars: tuple[float, float] | None = None
    steps: int | None = None


def estimate(
    chips: Chips,
    *,
    operations: float | None,
    program_bytes: int | None,
    steps: int | None,
    has_dynamic_shapes: bool,
    has_varying_shapes: bool,
) -> Estimate:
    """`operations` are those of one step of the global batch, `program_bytes` the memory of a
    program for that batch."""
    peak = PEAK_FLOPS.get(chips.generation)
    if peak is None:
        return Estimate(f"the peak performance of {chips.generation} is unknown")
    if has_dynamic_shapes:
        return Estimate("its dynamic shapes take as long as their upper bounds on a TPU")
    if has_varying_shapes:
        return Estimate("its shapes vary, and each new shape is compiled")
    if not operations:
        return Estimate("the operations of its step cannot be counted")
    if program_bytes and operations / program_bytes < MIN_INTENSITY:
        return Estimate("its step is limited by memory bandwidth, not by arithmetic")
    low, high = (operations / (chips.chips * peak * share) for share in reversed(UTILIZATION))
    if low < MIN_STEP_SECONDS:
        return Estimate(
            "its step is too small for these chips: launching it takes longer than running it"
        )
    if steps is None:
        return Estimate(step_seconds=(low, high))
    seconds = (low * steps, high * steps)
    cost = None
    if chips.per_hour is not None:
        cost = (seconds[0] / 3600 * chips.per_hour, seconds[1] / 3600 * chips.per_hour)
    return Estimate(step_seconds=(low, high), seconds=seconds, dollars=cost, steps=steps)
