"""Stateless dropout: masks follow from the step, so checkpoints contain no generator.

Keras' Dropout draws from a generator that counts its calls: a resumed run, or one with another
number of replicas, would draw other masks. Here a mask follows from the seed, the step, the layer
and the replica alone, and the compiled step has no state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from training.keras2 import keras

__all__ = ["StatelessDropout", "make_stateless", "masks_of"]

# The step and the replica, as int64 scalars. Each replica is traced in a separate thread.
STEP_AND_REPLICA: ContextVar[tuple[Any, Any]] = ContextVar("the step and the replica")


@contextmanager
def masks_of(step: Any, replica: Any) -> Iterator[None]:
    """Use the dropout masks of this step and replica within the context.

    Both are integers or scalar tensors; a replica's number is below 65,536.
    """
    token = STEP_AND_REPLICA.set((tf.cast(step, tf.int64), tf.cast(replica, tf.int64)))
    try:
        yield
    finally:
        STEP_AND_REPLICA.reset(token)


class StatelessDropout(keras.layers.Layer):
    """Drops a share of its input while training; call it within `masks_of`."""

    def __init__(self, rate: float, seed: int, number: int, **arguments: Any) -> None:
        """`number` identifies the layer, so that layers have different masks; below 65,536."""
        super().__init__(**arguments)
        self.rate = rate
        self.key = (seed << 32) + (number << 16)

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Return the input, while training with `rate` of it zero and the rest scaled up.

        Raises LookupError outside `masks_of`.
        """
        if not training or not self.rate:
            return inputs
        step, replica = STEP_AND_REPLICA.get()
        # The four numbers use separate bits, so no two masks share a seed.
        seed = tf.stack([step, self.key + replica])
        # In float32 whatever the input is: bfloat16 has too few values between 0 and the rate.
        kept_mask = tf.random.stateless_uniform(inputs.shape, seed) >= self.rate
        return tf.where(kept_mask, inputs * (1 / (1 - self.rate)), tf.zeros([], inputs.dtype))


def make_stateless(network: Any, seed: int) -> int:
    """Replace every Dropout in a network; return the number of layers replaced.

    They have no weights, so checkpoints and exported models stay the same. `seed` is below 2**31.
    """
    number = 0
    for owner in (network, *network.submodules):
        for name, layer in list(vars(owner).items()):
            if isinstance(layer, keras.layers.Dropout):
                setattr(owner, name, StatelessDropout(layer.rate, seed, number, name=layer.name))
                number += 1
    return number
