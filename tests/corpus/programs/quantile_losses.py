from __future__ import annotations

import typing as t

import keras
import numpy as np
import tensorflow as tf


class Pinball(keras.losses.Loss):
    def __init__(self, quantiles: t.Sequence[float], name: str = "pinball") -> None:
        super().__init__(name=name)
        self.quantiles = list(quantiles)

    def call(self, y_true, y_pred):
        losses = []
        for index, quantile in enumerate(self.quantiles):
            error = y_true[:, 0] - y_pred[:, index]
            losses.append(tf.maximum(quantile * error, (quantile - 1.0) * error))
        if len(losses) == 1:
            return losses[0]
        return tf.add_n(losses) / float(len(losses))


model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)])
model.compile(optimizer="rmsprop", loss=Pinball([0.1, 0.5, 0.9]))


def train():
    model.fit(np.random.rand(8, 4), np.random.rand(8, 1), batch_size=4)
