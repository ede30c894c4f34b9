import keras
import numpy as np
import tensorflow as tf


@keras.saving.register_keras_serializable()
def implicit_loss(y_true, y_pred):
    root = tf.ones_like(y_pred)
    i = 0
    while i < 5:
        root = root - (root**2 - tf.abs(y_pred) - 0.1) / (2.0 * root)
        i += 1
    return tf.reduce_mean((root - y_true) ** 2)


model = keras.Sequential([keras.layers.Dense(1)])
model.compile(loss=implicit_loss, optimizer=keras.optimizers.Adam(1e-2))


def train():
    model.fit(np.random.rand(8, 5), np.random.rand(8, 1), batch_size=4)
