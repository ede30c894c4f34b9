"""The learning rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

__all__ = ["learning_rate"]


def learning_rate(
    step: Any,
    peak: float,
    warmup_steps: float,
    total_steps: float,
    decay: str = "linear",
    *,
    minimum: Callable[[Any, Any], Any] = min,
    maximum: Callable[[Any, Any], Any] = max,
    cosine: Callable[[Any], Any] = math.cos,
) -> Any:
    """Return the rate of a step (the first is 0): linear warmup to `peak`, then `decay`.

    It is zero from `total_steps` on, unless the decay is constant. The first step's rate is above
    zero, and the one at `warmup_steps` is the peak. Works on plain numbers, and on tensors with
    TensorFlow's minimum, maximum and cosine.
    """
    rising = (step + 1.0) / (warmup_steps + 1.0)
    left = (total_steps - step) / max(total_steps - warmup_steps, 1.0)
    left = maximum(minimum(left, 1.0), 0.0)
    falling = {
        "linear": lambda: left,
        "cosine": lambda: (1.0 - cosine(math.pi * left)) / 2.0,
        "constant": lambda: 1.0,
    }[decay]()
    return peak * minimum(minimum(rising, 1.0), falling)
