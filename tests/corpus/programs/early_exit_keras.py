import keras
import numpy as np
import tensorflow as tf


class EarlyExit(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(4)
        self.second = keras.layers.Dense(4)

    def is_confident(self, x):
        return tf.reduce_max(tf.nn.softmax(x)) > 0.9

    def call(self, x):
        x = self.first(x)
        return x if self.is_confident(x) else self.second(x)


model = EarlyExit()
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def train():
    model.fit(np.random.rand(8, 5), np.random.randint(0, 4, 8), batch_size=4)
