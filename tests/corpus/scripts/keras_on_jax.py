"""Keras 3 with JAX underneath: a stateless training step of one's own, jitted."""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
import numpy as np
from keras import layers, ops


class Attention(layers.Layer):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (layers.Dense(width, use_bias=False) for _ in range(3))
        self.scale = width**-0.5

    def call(self, x, mask=None):
        scores = ops.einsum("bqd,bkd->bqk", self.query(x), self.key(x)) * self.scale
        if mask is not None:
            scores = ops.where(mask[:, None, :], scores, -1e9)
        return ops.einsum("bqk,bkd->bqd", ops.softmax(scores), self.value(x))


def build(words=100, length=12):
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, 16)(inputs)
    x = Attention(16)(x) + x
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(2)(x))


model = build()
optimizer = keras.optimizers.Adam(1e-2)
optimizer.build(model.trainable_variables)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compute_loss(trainable, untrained, x, y):
    logits, untrained = model.stateless_call(trainable, untrained, x, training=True)
    return loss_fn(y, logits), (untrained, logits)


gradient = jax.value_and_grad(compute_loss, has_aux=True)


@jax.jit
def train_step(state, x, y):
    trainable, untrained, optimized = state
    (loss, (untrained, _)), gradients = gradient(trainable, untrained, x, y)
    trainable, optimized = optimizer.stateless_apply(optimized, gradients, trainable)
    return loss, (trainable, untrained, optimized)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=30)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.integers(0, 100, (300, 12))
    y = (x[:, 0] > 50).astype("int32")

    state = tuple(
        [variable.value for variable in group]
        for group in (
            model.trainable_variables,
            model.non_trainable_variables,
            optimizer.variables,
        )
    )
    for step in range(args.steps):
        chosen = rng.integers(0, len(x), args.batch)
        loss, state = train_step(state, x[chosen], y[chosen])
        if step % 5 == 0:
            print(f"step {step}: {float(loss):.3f}")
        if float(loss) < 0.01:
            break

    trainable, untrained, _ = state
    for variable, value in zip(model.trainable_variables, trainable):
        variable.assign(value)
    for variable, value in zip(model.non_trainable_variables, untrained):
        variable.assign(value)
    guess = np.argmax(model.predict(x, batch_size=100, verbose=0), axis=-1)
    print("accuracy", (guess == y).mean(), "on", keras.backend.backend())


if __name__ == "__main__":
    main()
