import keras
import numpy as np
import tensorflow as tf


class CausalAttention(keras.layers.Layer):
    def __init__(self, width, heads=2):
        super().__init__()
        self.width, self.heads = width, heads
        self.project = keras.layers.Dense(3 * width)
        self.out = keras.layers.Dense(width)

    def call(self, x, training=False):
        batch, length = tf.shape(x)[0], x.shape[1]
        parts = tf.reshape(self.project(x), [batch, length, 3, self.heads, -1])
        query, key, value = tf.unstack(parts, axis=2)
        scores = tf.einsum("bqhd,bkhd->bhqk", query, key)
        allowed = tf.linalg.band_part(tf.ones([length, length]), -1, 0)
        scores += (1.0 - allowed) * -1e9
        if training:
            scores = tf.nn.dropout(scores, 0.1)
        mixed = tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), value)
        return self.out(tf.reshape(mixed, [batch, length, self.width]))


inputs = keras.Input((6, 8))
model = keras.Model(inputs, keras.layers.Dense(1)(CausalAttention(8)(inputs)))
model.compile("adam", "mse")


def train():
    model.fit(np.random.rand(8, 6, 8), np.random.rand(8, 6, 1), batch_size=4)
