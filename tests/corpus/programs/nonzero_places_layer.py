import keras
import numpy as np
import tensorflow as tf


class SparsePool(keras.layers.Layer):
    def call(self, x):
        places = tf.where(x > 0)[:, 0]
        picked = tf.gather(tf.reduce_sum(x, axis=1), places)
        return x * tf.reduce_mean(picked)


model = keras.Sequential([keras.layers.Dense(4), SparsePool(), keras.layers.Dense(1)])
model.compile("adam", "mse")


def train():
    model.fit(np.random.rand(8, 5), np.random.rand(8, 1), batch_size=4)
