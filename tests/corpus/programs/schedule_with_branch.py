import keras
import numpy as np
import tensorflow as tf


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, peak, steps):
        self.peak, self.steps = peak, steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        if step < self.steps:
            return self.peak * step / self.steps
        return tf.constant(self.peak)


model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(Warmup(1e-3, 10.0)), "mse")


def train():
    model.fit(np.random.rand(8, 5), np.random.rand(8, 1), batch_size=4)
