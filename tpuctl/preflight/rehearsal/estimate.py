"""How long the whole run may take on the TPU, and what it may cost: a range, or nothing.

A step on this machine's CPU says nothing of a step on a TPU. What carries over is the arithmetic of
the step's program. Held against the chips' published peak, at the share of it that training reaches
as a rule, that gives a range. Where something else than arithmetic decides, no figure is given but
the reason why not.

The published reference point: BERT-base trained on a v3-8 at 217,000 tokens a second (1,000,000
steps of 256 sequences of 512 words in 7 days; cl-tohoku/bert-japanese), which is a quarter of the
peak.
"""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.model.cost import dollars

__all__ = [
    "PEAK",
    "UTILIZATION",
    "Chips",
    "Estimate",
    "estimate",
    "format_cost",
    "format_time",
    "rounded",
]

# FLOP/s of a chip in bfloat16, which TensorFlow's matrix multiplications on a TPU use for float32
# as well (docs.cloud.google.com/tpu/docs, the page of each generation, read 2026-11).
PEAK = {
    "v2": 45e12,
    "v3": 123e12,
    "v4": 275e12,
    "v5e": 197e12,
    "v5p": 459e12,
    "v6e": 918e12,
}
UTILIZATION = (0.15, 0.5)  # what training reaches of it where arithmetic decides
LEAST_SECONDS = 0.002  # of a step at the best: below that, starting it takes as long
LEAST_INTENSITY = 50.0  # operations for each byte of the program: below that, memory decides


@dataclass(frozen=True)
class Chips:
    """What the run is to be done on."""

    generation: str
    chips: int
    per_hour: float | None  # US dollars for all of it; None where no price is known


@dataclass(frozen=True)
class Estimate:
    """Between what the whole run lies, best first; else why nothing can be said."""

    unavailable_reason: str = ""
    step_seconds: tuple[float, float] | None = None
    seconds: tuple[float, float] | None = None  # None where nobody knows how many steps
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
    """`operations` are those of one step of the whole batch; `program_bytes` is what a program of
    that batch takes in memory."""
    peak = PEAK.get(chips.generation)
    if peak is None:
        return Estimate(f"the peak performance of {chips.generation} is unknown")
    if has_dynamic_shapes:
        return Estimate("its dynamic shapes take as long as their upper bounds on a TPU")
    if has_varying_shapes:
        return Estimate("its shapes vary, and each new one is compiled again")
    if not operations:
        return Estimate("the operations of its step cannot be counted")
    if program_bytes and operations / program_bytes < LEAST_INTENSITY:
        return Estimate("its step is limited by memory bandwidth, not by arithmetic")
    low, high = (operations / (chips.chips * peak * share) for share in reversed(UTILIZATION))
    if low < LEAST_SECONDS:
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


def format_time(between: tuple[float, float]) -> str:
    """`2 to 7 hours`."""
    for name, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("s", 1.0)):
        if between[1] >= 2 * size:
            return f"{rounded(between[0] / size)} to {rounded(between[1] / size)} {name}"
    return f"{rounded(between[0] * 1000)} to {rounded(between[1] * 1000)} ms"


def format_cost(between: tuple[float, float]) -> str:
    """`$18 to $60`: no more digits than an estimate has."""
    low, high = between
    if high < 10:
        return f"{dollars(low)} to {dollars(high)}"
    return f"${rounded(low)} to ${rounded(high)}"


def rounded(value: float) -> str:
    """Two digits: `3,100`, `42`, `2.3`."""
    if value >= 100:
        digits = 10 ** (len(str(int(value))) - 2)
        return f"{round(value / digits) * digits:,}"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")
