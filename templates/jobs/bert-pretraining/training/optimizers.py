"""The optimizer and its learning rate."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from training.keras2 import keras
from training.schedule import warmup_then_linear

__all__ = ["WarmupThenLinear", "build_optimizer"]


class WarmupThenLinear(keras.optimizers.schedules.LearningRateSchedule):
    """`warmup_then_linear` for an optimizer."""

    def __init__(self, peak: float, warmup_steps: int, total_steps: int) -> None:
        self.peak, self.warmup_steps, self.total_steps = peak, warmup_steps, total_steps

    def __call__(self, step: Any) -> Any:
        return warmup_then_linear(
            tf.cast(step, tf.float32),
            self.peak,
            float(self.warmup_steps),
            float(self.total_steps),
            tf.minimum,
            tf.maximum,
        )

    def get_config(self) -> dict[str, Any]:
        return vars(self)


def build_optimizer(
    variables: list[Any], schedule: WarmupThenLinear, weight_decay: float, clip_norm: float
) -> keras.optimizers.Optimizer:
    """Return AdamW with its state made; biases and normalisations do not decay."""
    optimizer = keras.optimizers.AdamW(
        schedule,
        weight_decay=weight_decay,
        beta_2=0.98,
        epsilon=1e-6,
        global_clipnorm=clip_norm,
    )
    optimizer.exclude_from_weight_decay(var_names=["LayerNorm", "bias"])
    optimizer.build(variables)
    return optimizer
