import keras
import numpy as np
import tensorflow as tf


def hardest_half(y_true, y_pred):
    errors = tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)
    count = errors.shape[0] // 2 if errors.shape[0] else 2
    return tf.reduce_mean(tf.math.top_k(errors, k=count).values)


model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile("adam", loss=hardest_half)


def train():
    data = tf.data.Dataset.from_tensor_slices((np.random.rand(8, 5), np.random.rand(8, 1)))
    model.fit(data.batch(4, drop_remainder=True))
