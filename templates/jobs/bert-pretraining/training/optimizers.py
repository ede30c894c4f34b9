"""The optimizers and their learning rate."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from training.keras2 import keras
from training.schedule import learning_rate

__all__ = ["LAMB", "Schedule", "build_optimizer"]

UNDECAYED = ("LayerNorm", "bias")  # parts of the names of weights without weight decay
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
    """LAMB: Adam with each matrix's update scaled to the norm of its weights.

    You et al., Large Batch Optimization for Deep Learning, arXiv:1904.00962, algorithm 2, with the
    identity as the scaling function. As in the authors' code, weights without weight decay are not
    rescaled either.
    """

    def __init__(
        self,
        learning_rate: Any,
        weight_decay: float,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = EPSILON,
    ) -> None:
        # The base class would apply weight decay separately from the update.
        super().__init__(name="LAMB", weight_decay=None, jit_compile=False)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.share, self.beta_1, self.beta_2, self.epsilon = weight_decay, beta_1, beta_2, epsilon

    def build(self, variables: list[Any]) -> None:
        """Create both moments of every weight."""
        super().build(variables)
        if not hasattr(self, "moments"):
            self.moments = [
                [self.add_variable_from_reference(variable, name) for variable in variables]
                for name in ("mean", "square")
            ]

    def update_step(self, gradient: Any, variable: Any) -> None:
        """Update one weight with its dense gradient."""
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
            rate = rate * trust_ratio(variable, change)
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


def trust_ratio(weights: Any, change: Any) -> Any:
    """Return the norm of the weights divided by the norm of the change; 1 if either is zero."""
    # l2_loss sums the squares in one pass, without storing them.
    lengths = tf.sqrt(
        tf.stack([tf.nn.l2_loss(tf.convert_to_tensor(weights)), tf.nn.l2_loss(change)])
    )
    return tf.where(tf.reduce_min(lengths) > 0, tf.math.divide_no_nan(lengths[0], lengths[1]), 1.0)


def decays(variable: Any) -> bool:
    return not any(part in variable.name for part in UNDECAYED)


def build_optimizer(
    name: str, variables: list[Any], schedule: Schedule, weight_decay: float
) -> keras.optimizers.Optimizer:
    """Return an optimizer with its state created; biases and normalizations have no weight decay.

    `name` is adamw (Loshchilov and Hutter, arXiv:1711.05101) or lamb. Gradients must be dense,
    clipped, and summed over the replicas. Call it within the strategy's scope.
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
