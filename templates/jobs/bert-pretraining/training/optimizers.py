"""The optimizers and their learning rate."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from training.keras2 import keras
from training.schedule import learning_rate

__all__ = ["LAMB", "Schedule", "build_optimizer"]

UNDECAYED = ("LayerNorm", "bias")  # parts of the names of weights that do not decay
EPSILON = 1e-6


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """`learning_rate` for an optimizer."""

    def __init__(
        self, peak: float, warmup_steps: int, total_steps: int, decay: str = "linear"
    ) -> None:
        self.peak, self.warmup_steps, self.total_steps = peak, warmup_steps, total_steps
        self.decay = decay

    def __call__(self, step: Any) -> Any:
        return learning_rate(
            tf.cast(step, tf.float32),
            self.peak,
            float(self.warmup_steps),
            float(self.total_steps),
            self.decay,
            minimum=tf.minimum,
            maximum=tf.maximum,
            cosine=tf.cos,
        )

    def get_config(self) -> dict[str, Any]:
        return vars(self)


class LAMB(keras.optimizers.Optimizer):
    """Adam whose step, decay included, has in each weight matrix the length of the weights.

    You et al., Large Batch Optimization for Deep Learning, arXiv:1904.00962, algorithm 2, with the
    identity as the scaling function. As in its authors' own program, weights that do not decay are
    not rescaled either.
    """

    def __init__(
        self,
        learning_rate: Any,
        weight_decay: float,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = EPSILON,
    ) -> None:
        # The base class would decay apart from the step.
        super().__init__(name="LAMB", weight_decay=None, jit_compile=False)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.share, self.beta_1, self.beta_2, self.epsilon = weight_decay, beta_1, beta_2, epsilon

    def build(self, variables: list[Any]) -> None:
        """Make both moments of every weight."""
        super().build(variables)
        if not hasattr(self, "moments"):
            self.moments = [
                [self.add_variable_from_reference(variable, name) for variable in variables]
                for name in ("mean", "square")
            ]

    def update_step(self, gradient: Any, variable: Any) -> None:
        """Change one weight by its gradient, which is dense."""
        number = self._index_dict[self._var_key(variable)]
        mean, square = (moments[number] for moments in self.moments)
        steps = tf.cast(self.iterations + 1, tf.float32)
        mean.assign_add((gradient - mean) * (1 - self.beta_1))
        square.assign_add((tf.square(gradient) - square) * (1 - self.beta_2))
        unbiased = mean / (1 - self.beta_1**steps)
        deviation = tf.sqrt(square / (1 - self.beta_2**steps))
        change = unbiased / (deviation + self.epsilon)
        rate = tf.cast(self.learning_rate, tf.float32)
        if decays(variable):
            change += self.share * variable
            rate = rate * trust(variable, change)
        variable.assign_sub(rate * change)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "learning_rate": self._serialize_hyperparameter(self._learning_rate),
            "weight_decay": self.share,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
        }


def trust(weights: Any, change: Any) -> Any:
    """Return the weights' length over the change's; 1 where either is zero."""
    # The squares' sum in one pass, without their squares in memory.
    lengths = tf.sqrt(
        tf.stack([tf.nn.l2_loss(tf.convert_to_tensor(weights)), tf.nn.l2_loss(change)])
    )
    return tf.where(tf.reduce_min(lengths) > 0, tf.math.divide_no_nan(lengths[0], lengths[1]), 1.0)


def decays(variable: Any) -> bool:
    return not any(part in variable.name for part in UNDECAYED)


def build_optimizer(
    name: str, variables: list[Any], schedule: Schedule, weight_decay: float
) -> keras.optimizers.Optimizer:
    """Return an optimizer with its state made; biases and normalizations do not decay.

    `name` is adamw (Loshchilov and Hutter, arXiv:1711.05101) or lamb. Gradients are to be dense,
    clipped, and summed over the replicas before. Call it within the strategy's scope.
    """
    if name == "lamb":
        optimizer = LAMB(schedule, weight_decay)
    else:
        optimizer = keras.optimizers.AdamW(
            schedule, weight_decay=weight_decay, beta_2=0.98, epsilon=EPSILON, jit_compile=False
        )
        optimizer.exclude_from_weight_decay(var_names=list(UNDECAYED))
    optimizer.build(variables)
    return optimizer
