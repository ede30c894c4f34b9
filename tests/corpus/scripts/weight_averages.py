"""Averages of the weights: kept beside the training, swapped in for the evaluation."""

import argparse
import contextlib

import numpy as np
import tensorflow as tf
from tensorflow import keras


class Averages:
    """Exponential moving averages of a model's weights."""

    def __init__(self, variables, decay=0.99):
        self.variables = list(variables)
        self.decay = decay
        self.shadows = [tf.Variable(variable, trainable=False) for variable in self.variables]
        self.count = tf.Variable(0.0, trainable=False)

    @tf.function
    def update(self):
        self.count.assign_add(1.0)
        decay = tf.minimum(self.decay, (1.0 + self.count) / (10.0 + self.count))
        for shadow, variable in zip(self.shadows, self.variables):
            shadow.assign(decay * shadow + (1.0 - decay) * variable)

    @contextlib.contextmanager
    def swapped(self):
        kept = [variable.numpy() for variable in self.variables]
        for variable, shadow in zip(self.variables, self.shadows):
            variable.assign(shadow)
        try:
            yield
        finally:
            for variable, value in zip(self.variables, kept):
                variable.assign(value)


def build(use_ema):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3),
        ]
    )
    optimizer = keras.optimizers.SGD(0.1, use_ema=use_ema, ema_momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


class Averaging(keras.callbacks.Callback):
    def __init__(self, averages):
        super().__init__()
        self.averages = averages

    def on_train_batch_end(self, batch, logs=None):
        self.averages.update()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 6)).astype("float32")
    y = np.argmax(x[:, :3], axis=1)
    train = tf.data.Dataset.from_tensor_slices((x[:384], y[:384])).shuffle(384).repeat()
    train = train.batch(args.batch, drop_remainder=True)
    test = tf.data.Dataset.from_tensor_slices((x[384:], y[384:]))
    test = test.batch(args.batch, drop_remainder=True)

    model = build(use_ema=False)
    averages = Averages(model.trainable_variables)
    model.fit(train, steps_per_epoch=args.steps, callbacks=[Averaging(averages)], verbose=0)
    plain = model.evaluate(test, verbose=0, return_dict=True)
    with averages.swapped():
        averaged = model.evaluate(test, verbose=0, return_dict=True)
    for name in plain:
        better = "better" if averaged[name] > plain[name] else "not better"
        print(f"{name}: {plain[name]:.3f}, averaged {averaged[name]:.3f} ({better} as a number)")

    other = build(use_ema=True)
    other.fit(train, steps_per_epoch=args.steps, verbose=0)
    other.optimizer.finalize_variable_values(other.trainable_variables)
    print("Keras's own:", other.evaluate(test, verbose=0)[1])


if __name__ == "__main__":
    main()
