import numpy as np
import tensorflow as tf
import tf_keras as keras

LENGTH = 16


class Pooler(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.dense = keras.layers.Dense(units, activation="tanh")

    def call(self, states, mask=None):
        if mask is None:
            return self.dense(states[:, 0])
        weights = tf.cast(mask, states.dtype)[:, :, tf.newaxis]
        total = tf.reduce_sum(states * weights, axis=1)
        return self.dense(total / tf.maximum(tf.reduce_sum(weights, axis=1), 1.0))


ids = keras.Input((LENGTH,), dtype="int32")
embedded = keras.layers.Embedding(50, 8)(ids)
pooled = Pooler(8)(embedded, mask=tf.not_equal(ids, 0))
model = keras.Model(ids, keras.layers.Dense(2)(pooled))
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def train():
    x = np.random.randint(0, 50, (8, LENGTH))
    y = np.random.randint(0, 2, 8)
    model.fit(x, y, batch_size=4, epochs=1)
