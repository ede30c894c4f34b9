"""Masks handed through layers of one's own: computed, passed on, used and ended."""

import argparse

import numpy as np
import tensorflow as tf
from keras import ops
from tensorflow import keras
from tensorflow.keras import layers

LENGTH, WORDS = 12, 50


@keras.utils.register_keras_serializable("masks")
class TemporalSplit(layers.Layer):
    """Splits in halves along time, the mask too."""

    def call(self, inputs):
        return tf.split(inputs, 2, axis=1)

    def compute_mask(self, inputs, mask=None):
        if mask is None:
            return None
        return ops.split(mask, 2, axis=1)


class CustomEmbedding(layers.Layer):
    def __init__(self, words, width, mask_zero=False, **kwargs):
        super().__init__(**kwargs)
        self.words, self.width, self.mask_zero = words, width, mask_zero

    def build(self, input_shape):
        self.table = self.add_weight(shape=(self.words, self.width), initializer="uniform", name="table")

    def call(self, inputs):
        return tf.nn.embedding_lookup(self.table, tf.cast(inputs, tf.int32))

    def compute_mask(self, inputs, mask=None):
        if not self.mask_zero:
            return None
        return ops.not_equal(inputs, 0)


class Activation(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs):
        return tf.nn.relu(inputs)


class MaskedSoftmax(layers.Layer):
    """Along time, over what is there."""

    def call(self, inputs, mask=None):
        scores = inputs
        if mask is not None:
            hidden = tf.cast(tf.logical_not(mask), scores.dtype)[..., tf.newaxis]
            scores = scores - 1e9 * hidden
        return tf.nn.softmax(scores, axis=1)


class MaskedMean(layers.Layer):
    def call(self, inputs, mask=None):
        if mask is None:
            return tf.reduce_mean(inputs, axis=1)
        weights = tf.cast(mask, inputs.dtype)[..., tf.newaxis]
        total = tf.reduce_sum(inputs * weights, axis=1)
        return tf.math.divide_no_nan(total, tf.reduce_sum(weights, axis=1))

    def compute_mask(self, inputs, mask=None):
        return None


def build():
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = CustomEmbedding(WORDS, 16, mask_zero=True)(inputs)
    x = Activation()(x)
    attention = MaskedSoftmax()(layers.Dense(1)(x))
    x = layers.Multiply()([x, attention])
    return keras.Model(inputs, layers.Dense(1)(MaskedMean()(x)))


def data(count, seed=0):
    rng = np.random.default_rng(seed)
    x = np.zeros((count, LENGTH), "int32")
    for row in x:
        words = rng.integers(1, WORDS, rng.integers(2, LENGTH))
        row[: len(words)] = words
    return x, (x.max(axis=1) > 45).astype("float32")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    x, y = data(256)
    model = build()
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(args.batch, drop_remainder=True)
    model.fit(dataset, steps_per_epoch=args.steps)
    first, second = TemporalSplit()(tf.ones((2, 4, 3)))
    print(first.shape, second.shape)
    embedding = CustomEmbedding(WORDS, 4, mask_zero=True)
    shown = embedding.compute_mask(tf.constant(x[:2])).numpy()
    for row in shown:
        print("".join("#" if there else "." for there in row))


if __name__ == "__main__":
    main()
