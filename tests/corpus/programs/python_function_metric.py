import keras
import numpy as np
import tensorflow as tf


def exact_matches(y_true, y_pred):
    def count(a, b):
        return np.float32((a.numpy().round() == b.numpy().round()).mean())

    matches = tf.py_function(count, [y_true, y_pred], tf.float32)
    return tf.ensure_shape(matches, [])


model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=[exact_matches])


def train():
    model.fit(np.random.rand(8, 5), np.random.rand(8, 1), batch_size=4)
