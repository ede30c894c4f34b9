import keras
import numpy as np
import tensorflow as tf


class Ponder(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.cell = keras.layers.Dense(4, activation="tanh")

    def call(self, x):
        while tf.reduce_max(x) > 0.5:
            x = self.cell(x) * 0.9
        return x


model = keras.Sequential([keras.layers.Dense(4), Ponder(), keras.layers.Dense(1)])
model.compile("adam", "mse")


def train():
    model.fit(np.random.rand(8, 5), np.random.rand(8, 1), batch_size=4)
