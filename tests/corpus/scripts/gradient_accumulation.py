"""Large batches in small memory: gradients summed over a fixed number of small batches."""

import argparse

import numpy as np
import tensorflow as tf
from tensorflow import keras

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--pieces", type=int, default=4)
args = parser.parse_args()
if args.batch % args.pieces:
    parser.error("--batch has to be a multiple of --pieces")


class Accumulating(keras.Model):
    """Splits each batch and applies the gradients' sum once."""

    def __init__(self, inner, pieces):
        super().__init__()
        self.inner = inner
        self.pieces = pieces
        self.mean = keras.metrics.Mean(name="loss")

    def call(self, x, training=False):
        return self.inner(x, training=training)

    @property
    def metrics(self):
        return [self.mean]

    def train_step(self, data):
        x, y = data
        variables = self.inner.trainable_variables
        total = [tf.zeros(variable.shape) for variable in variables]
        losses = 0.0
        for piece_x, piece_y in zip(tf.split(x, self.pieces), tf.split(y, self.pieces)):
            with tf.GradientTape() as tape:
                guess = self.inner(piece_x, training=True)
                loss = tf.reduce_mean(tf.square(guess[:, 0] - piece_y)) / self.pieces
            gradients = tape.gradient(loss, variables)
            total = [one + another for one, another in zip(total, gradients)]
            losses += loss
        self.optimizer.apply_gradients(zip(total, variables))
        self.mean.update_state(losses)
        return {"loss": self.mean.result()}


def network():
    return keras.Sequential(
        [
            keras.Input((10,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(1),
        ]
    )


class LoopAccumulator:
    """The same by hand: sums kept in variables, applied every few calls."""

    def __init__(self, model, optimizer, every):
        self.model, self.optimizer, self.every = model, optimizer, every
        self.sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in model.trainable_variables]
        self.calls = 0

    @tf.function
    def add(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True)[:, 0] - y))
        for total, gradient in zip(self.sums, tape.gradient(loss, self.model.trainable_variables)):
            total.assign_add(gradient / self.every)
        return loss

    @tf.function
    def apply(self):
        self.optimizer.apply_gradients(zip(self.sums, self.model.trainable_variables))
        for total in self.sums:
            total.assign(tf.zeros_like(total))

    def step(self, x, y):
        loss = self.add(x, y)
        self.calls += 1
        if self.calls % self.every == 0:
            self.apply()
        return float(loss)


rng = np.random.default_rng(0)
x = rng.normal(size=(256, 10)).astype("float32")
y = x[:, 0] * x[:, 1]
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(256).repeat()

model = Accumulating(network(), args.pieces)
model.compile(optimizer=keras.optimizers.Adam(1e-3))
model.fit(dataset.batch(args.batch, drop_remainder=True), steps_per_epoch=args.steps)

small = network()
optimizer = keras.optimizers.Adam(1e-3)
optimizer.build(small.trainable_variables)
accumulator = LoopAccumulator(small, optimizer, args.pieces)
pieces = dataset.batch(args.batch // args.pieces, drop_remainder=True)
for number, (features, labels) in enumerate(pieces.take(args.steps * args.pieces)):
    loss = accumulator.step(features, labels)
    if number % args.pieces == args.pieces - 1:
        print(f"applied after {number + 1} pieces, loss {loss:.3f}")
