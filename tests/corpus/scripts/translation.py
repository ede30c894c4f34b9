"""Reversing sequences as if translating: encoder, decoder, warm-up, masked loss and accuracy."""

import argparse

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

WORDS, LENGTH, WIDTH, HEADS = 64, 16, 32, 4
START, END = 1, 2


def positional_encoding(length, depth):
    positions = np.arange(length)[:, np.newaxis]
    depths = np.arange(depth // 2)[np.newaxis] / (depth // 2)
    angles = positions / (10_000**depths)
    return tf.constant(np.concatenate([np.sin(angles), np.cos(angles)], -1), tf.float32)


class PositionalEmbedding(layers.Layer):
    def __init__(self, words, width):
        super().__init__()
        self.width = width
        self.embedding = layers.Embedding(words, width)
        self.encoding = positional_encoding(2048, width)

    def call(self, ids):
        length = tf.shape(ids)[1]
        x = self.embedding(ids) * tf.math.sqrt(tf.cast(self.width, tf.float32))
        return x + self.encoding[tf.newaxis, :length, :]


class Feed(layers.Layer):
    def __init__(self, width, hidden):
        super().__init__()
        self.inner = layers.Dense(hidden, activation="relu")
        self.outer = layers.Dense(width)
        self.norm = layers.LayerNormalization()

    def call(self, x):
        return self.norm(x + self.outer(self.inner(x)))


class Attention(layers.Layer):
    def __init__(self, causal=False):
        super().__init__()
        self.causal = causal
        self.attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        self.norm = layers.LayerNormalization()

    def call(self, x, context=None, mask=None):
        context = x if context is None else context
        if mask is not None:
            mask = mask[:, tf.newaxis, :]
        y = self.attention(x, context, attention_mask=mask, use_causal_mask=self.causal)
        return self.norm(x + y)


class Translator(keras.Model):
    def __init__(self, depth=2):
        super().__init__()
        self.source = PositionalEmbedding(WORDS, WIDTH)
        self.target = PositionalEmbedding(WORDS, WIDTH)
        self.encoder = [(Attention(), Feed(WIDTH, 64)) for _ in range(depth)]
        self.decoder = [(Attention(causal=True), Attention(), Feed(WIDTH, 64)) for _ in range(depth)]
        self.head = layers.Dense(WORDS)

    def call(self, inputs, training=False):
        source, target = inputs
        mask = tf.not_equal(source, 0)
        context = self.source(source)
        for attend, feed in self.encoder:
            context = feed(attend(context, mask=mask))
        x = self.target(target)
        for attend, cross, feed in self.decoder:
            x = feed(cross(attend(x), context, mask=mask))
        return self.head(x)


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, width, steps=400):
        super().__init__()
        self.width = float(width)
        self.steps = steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32) + 1.0
        rise = step * self.steps**-1.5
        return tf.math.rsqrt(self.width) * tf.math.minimum(tf.math.rsqrt(step), rise)

    def get_config(self):
        return {"width": self.width, "steps": self.steps}


def masked_loss(label, logits):
    mask = tf.cast(tf.not_equal(label, 0), logits.dtype)
    losses = keras.losses.sparse_categorical_crossentropy(label, logits, from_logits=True)
    return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)


def masked_accuracy(label, logits):
    guess = tf.argmax(logits, axis=-1, output_type=label.dtype)
    mask = tf.not_equal(label, 0)
    match = tf.logical_and(tf.equal(guess, label), mask)
    return tf.reduce_sum(tf.cast(match, tf.float32)) / tf.reduce_sum(tf.cast(mask, tf.float32))


def pairs(count, seed=0):
    rng = np.random.default_rng(seed)
    source = np.zeros((count, LENGTH), "int32")
    target = np.zeros((count, LENGTH + 2), "int32")
    for row in range(count):
        words = rng.integers(3, WORDS, rng.integers(4, LENGTH))
        source[row, : len(words)] = words
        target[row, : len(words) + 2] = [START, *words[::-1], END]
    return (source, target[:, :-1]), target[:, 1:]


def translate(model, sentence):
    """Greedy, in plain Python: a word at a time."""
    source = np.zeros((1, LENGTH), "int32")
    source[0, : len(sentence)] = sentence
    output = [START]
    while len(output) < LENGTH + 1:
        target = np.zeros((1, LENGTH + 1), "int32")
        target[0, : len(output)] = output
        word = int(np.argmax(model((source, target), training=False)[0, len(output) - 1]))
        output.append(word)
        if word == END:
            break
    return output[1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
        strategy = tf.distribute.TPUStrategy(resolver)
    except ValueError:
        strategy = tf.distribute.get_strategy()
    with strategy.scope():
        model = Translator()
        optimizer = keras.optimizers.Adam(WarmUp(WIDTH), beta_2=0.98, epsilon=1e-9)
        model.compile(optimizer, masked_loss, metrics=[masked_accuracy])
    dataset = tf.data.Dataset.from_tensor_slices(pairs(256)).shuffle(256).repeat()
    model.fit(dataset.batch(args.batch, drop_remainder=True), steps_per_epoch=args.steps)
    print(translate(model, [5, 6, 7, 8]))


if __name__ == "__main__":
    main()
