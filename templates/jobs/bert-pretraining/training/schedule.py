"""The learning rate over the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["warmup_then_linear"]


def warmup_then_linear(
    step: Any,
    peak: float,
    warmup_steps: float,
    total_steps: float,
    minimum: Callable[[Any, Any], Any] = min,
    maximum: Callable[[Any, Any], Any] = max,
) -> Any:
    """Return the rate of a step (the first is 0): up to `peak` in a line, then down to zero.

    Works on plain numbers, and on tensors when given TensorFlow's minimum and maximum.
    """
    rising = (step + 1.0) / (warmup_steps + 1.0)
    falling = (total_steps - step) / maximum(total_steps - warmup_steps, 1.0)
    return peak * maximum(minimum(rising, falling), 0.0)
