import keras
import numpy as np
import tensorflow as tf


class Careful(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return self.out(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        if tf.math.is_finite(loss):
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


model = Careful()
model.compile(optimizer="sgd")


def train():
    model.fit(np.random.rand(8, 5), np.random.rand(8, 1), batch_size=4)
