import keras
import numpy as np
import tensorflow as tf


class Regressor(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="relu")
        self.out = keras.layers.Dense(1)
        self.tracker = keras.metrics.Mean(name="loss")
        self.error = keras.metrics.MeanAbsoluteError(name="mae")

    def call(self, x, training=None):
        x = self.hidden(x)
        if training:
            x = x + tf.random.normal(tf.shape(x), stddev=0.01)
        return self.out(x)

    @property
    def metrics(self):
        return [self.tracker, self.error]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = tf.reduce_mean(tf.square(predictions - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.tracker.update_state(loss)
        self.error.update_state(y, predictions)
        return {metric.name: metric.result() for metric in self.metrics}


model = Regressor()
model.compile(optimizer=keras.optimizers.Adam(1e-3))


def train():
    model.fit(np.random.rand(8, 5), np.random.rand(8, 1), batch_size=4, epochs=2)
