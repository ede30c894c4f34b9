import keras
import numpy as np
import tensorflow as tf


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, peak, steps):
        self.peak, self.steps = peak, steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        rising = self.peak * step / self.steps
        falling = self.peak * tf.math.rsqrt(tf.maximum(step, 1.0) / self.steps)
        return tf.minimum(rising, falling)

    def get_config(self):
        return {"peak": self.peak, "steps": self.steps}


class Printer(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if logs["loss"] > 1e6:
            self.model.stop_training = True
        print(f"{batch}: {float(logs['loss']):.3f}")


model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.AdamW(Warmup(1e-3, 10), clipnorm=1.0), "mse")


def train():
    model.fit(np.random.rand(8, 5), np.random.rand(8, 1), batch_size=4, callbacks=[Printer()])
