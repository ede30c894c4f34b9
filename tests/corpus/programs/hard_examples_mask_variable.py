import keras
import numpy as np
import tensorflow as tf


def hardest_half(y_true, y_pred):
    errors = tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)
    is_hard = errors >= tf.reduce_mean(errors)
    return tf.reduce_mean(errors[is_hard])


model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile("adam", loss=hardest_half)


def train():
    model.fit(np.random.rand(8, 5), np.random.rand(8, 1), batch_size=4)
