import keras
import numpy as np
import tensorflow as tf


def robust(y_true, y_pred):
    error = tf.reduce_mean(tf.abs(y_true - y_pred))
    if error > 1.0:
        return error
    return error**2


model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss=robust)


def train():
    model.fit(np.random.rand(8, 5), np.random.rand(8, 1), batch_size=4)
