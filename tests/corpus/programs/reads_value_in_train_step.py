import keras
import numpy as np
import tensorflow as tf


class Tracked(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)
        self.best = 1e9

    def call(self, x):
        return self.out(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        )
        self.best = min(self.best, float(loss))
        return {"loss": loss}


model = Tracked()
model.compile(optimizer="sgd")


def train():
    model.fit(np.random.rand(8, 5), np.random.rand(8, 1), batch_size=4)
