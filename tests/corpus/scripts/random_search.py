"""Hyperparameters by random search, in plain Python around short trainings."""

import argparse
import dataclasses
import json
import math
import random

import numpy as np
import tensorflow as tf
from tensorflow import keras


@dataclasses.dataclass(frozen=True)
class Trial:
    units: int
    depth: int
    rate: float
    dropout: float
    activation: str

    @classmethod
    def sample(cls, rng):
        return cls(
            units=rng.choice([8, 16, 32]),
            depth=rng.randint(1, 3),
            rate=10 ** rng.uniform(-4, -2),
            dropout=rng.uniform(0, 0.5),
            activation=rng.choice(["relu", "tanh", "gelu"]),
        )


def build(trial, features):
    model = keras.Sequential([keras.Input((features,))])
    for _ in range(trial.depth):
        model.add(keras.layers.Dense(trial.units, activation=trial.activation))
        if trial.dropout > 0.1:
            model.add(keras.layers.Dropout(trial.dropout))
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.Adam(trial.rate), "mse")
    return model


class Tuner:
    def __init__(self, space, limit, seed=0):
        self.space, self.limit = space, limit
        self.rng = random.Random(seed)
        self.results = []

    def trials(self):
        seen = set()
        while len(seen) < self.limit:
            trial = self.space(self.rng)
            if trial not in seen:
                seen.add(trial)
                yield trial

    def run(self, evaluate):
        for number, trial in enumerate(self.trials()):
            score = evaluate(trial)
            if math.isnan(score):
                print(f"trial {number} diverged")
                continue
            self.results.append((score, number, trial))
            print(f"trial {number}: {score:.4f}")
        if not self.results:
            raise RuntimeError("no trial ended well")
        return min(self.results)


def make_data(seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(512, 6)).astype("float32")
    y = (np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + rng.normal(0, 0.1, 512)).astype("float32")
    return x, y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    x, y = make_data()
    train = tf.data.Dataset.from_tensor_slices((x[:384], y[:384])).shuffle(384).repeat()
    train = train.batch(args.batch, drop_remainder=True)
    valid = tf.data.Dataset.from_tensor_slices((x[384:], y[384:]))
    valid = valid.batch(args.batch, drop_remainder=True)
    strategy = tf.distribute.get_strategy()

    def evaluate(trial):
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = build(trial, x.shape[1])
        history = model.fit(
            train, steps_per_epoch=args.steps, epochs=1, validation_data=valid, verbose=0
        )
        return history.history["val_loss"][-1]

    score, number, best = Tuner(Trial.sample, args.trials).run(evaluate)
    print(f"best is trial {number} with {score:.4f}:")
    print(json.dumps(dataclasses.asdict(best), indent=2))


if __name__ == "__main__":
    main()
