"""Dropout whose masks follow from the step, so that no checkpoint need hold a generator.

Keras' own Dropout draws from a generator that counts its calls. A run that is taken up again, or
that has another number of replicas, would draw other masks. Here a mask follows from the seed, the
step, the layer and the replica alone, and the compiled step holds nothing that has a state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from training.keras2 import keras

__all__ = ["StatelessDropout", "make_stateless", "masks_of"]

# The step and the replica, as int64 scalars. Replicas are traced in threads of their own.
PLACE: ContextVar[tuple[Any, Any]] = ContextVar("the step and the replica")


@contextmanager
def masks_of(step: Any, replica: Any) -> Iterator[None]:
    """Let what is called within drop by the masks of this step and replica.

    Both are integers or scalar tensors; a replica's number is below 65,536.
    """
    token = PLACE.set((tf.cast(step, tf.int64), tf.cast(replica, tf.int64)))
    try:
        yield
    finally:
        PLACE.reset(token)


class StatelessDropout(keras.layers.Layer):
    """Drops a share of its input while training; call it within `masks_of`."""

    def __init__(self, rate: float, seed: int, number: int, **arguments: Any) -> None:
        """`number` tells this layer's masks from those of the others; below 65,536."""
        super().__init__(**arguments)
        self.rate = rate
        self.key = (seed << 32) + (number << 16)

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Return the input, while training with `rate` of it zero and the rest scaled up.

        Raises LookupError outside `masks_of`.
        """
        if not training or not self.rate:
            return inputs
        step, replica = PLACE.get()
        # The four numbers have bits of their own, so no two masks share a seed.
        seed = tf.stack([step, self.key + replica])
        # In float32 whatever the input is: bfloat16 has too few values between 0 and the rate.
        kept = tf.random.stateless_uniform(inputs.shape, seed) >= self.rate
        return tf.where(kept, inputs * (1 / (1 - self.rate)), tf.zeros([], inputs.dtype))


def make_stateless(network: Any, seed: int) -> int:
    """Replace every Dropout within a network; return how many there were.

    They have no weights, so checkpoints and exported models do not notice. `seed` is below 2**31.
    """
    number = 0
    for owner in (network, *network.submodules):
        for name, layer in list(vars(owner).items()):
            if isinstance(layer, keras.layers.Dropout):
                setattr(owner, name, StatelessDropout(layer.rate, seed, number, name=layer.name))
                number += 1
    return number
