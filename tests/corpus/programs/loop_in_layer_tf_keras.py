import numpy as np
import tensorflow as tf
import tf_keras


class Settle(tf_keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight("kernel", (shape[-1], shape[-1]))

    def call(self, x):
        turns = tf.cast(tf.reduce_max(tf.abs(x)) * 3.0, tf.int32)
        for _ in tf.range(turns):
            x = tf.tanh(x @ self.kernel)
        return x


model = tf_keras.Sequential([Settle(), tf_keras.layers.Dense(1)])
model.compile("sgd", "mse")


def train():
    model.fit(np.random.rand(8, 5), np.random.rand(8, 1), batch_size=4)
