"""Names in sentences: token classification with padding left out of the loss by weights."""

import argparse
import collections

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

TAGS = ["[PAD]", "O", "B-PER", "I-PER", "B-LOC"]
LENGTH, WIDTH = 24, 32
PEOPLE, PLACES = ["ada", "grace", "alan"], ["paris", "seoul", "lima"]
FILLER = "went to see the river and then wrote home about it".split()


def sentences(count, seed=5):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        words, tags = [], []
        for _ in range(int(rng.integers(6, LENGTH))):
            kind = rng.random()
            if kind < 0.1:
                words.append(str(rng.choice(PEOPLE)))
                tags.append("B-PER")
            elif kind < 0.2:
                words.append(str(rng.choice(PLACES)))
                tags.append("B-LOC")
            else:
                words.append(str(rng.choice(FILLER)))
                tags.append("O")
        yield words, tags


def encode(rows, vocabulary):
    ids = np.zeros((len(rows), LENGTH), "int32")
    tags = np.zeros((len(rows), LENGTH), "int32")
    for n, (words, labels) in enumerate(rows):
        ids[n, : len(words)] = [vocabulary.get(word, 1) for word in words]
        tags[n, : len(labels)] = [TAGS.index(label) for label in labels]
    return ids, tags


class Block(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, WIDTH // 2)
        self.inner = layers.Dense(64, activation="relu")
        self.outer = layers.Dense(WIDTH)
        self.first = layers.LayerNormalization()
        self.second = layers.LayerNormalization()
        self.dropout = layers.Dropout(0.1)

    def call(self, x, training=False):
        x = self.first(x + self.dropout(self.attention(x, x), training=training))
        return self.second(x + self.outer(self.inner(x)))


class Tagger(keras.Model):
    def __init__(self, words):
        super().__init__()
        self.words = layers.Embedding(words, WIDTH)
        self.places = layers.Embedding(LENGTH, WIDTH)
        self.block = Block()
        self.head = layers.Dense(len(TAGS))

    def call(self, ids, training=False):
        x = self.words(ids) + self.places(tf.range(LENGTH))
        return self.head(self.block(x, training=training))


class WithoutPadding(keras.losses.Loss):
    def __init__(self, name="without_padding"):
        super().__init__(name=name, reduction="sum_over_batch_size")

    def call(self, y_true, y_pred):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(y_true, tf.int32), y_pred)
        mask = tf.cast(y_true > 0, losses.dtype)
        return tf.reduce_sum(losses * mask, axis=-1) / tf.maximum(tf.reduce_sum(mask, axis=-1), 1.0)


def report(truth, guess):
    """Counts in Python, of what came back from the device."""
    counts = collections.Counter()
    for wanted, found in zip(truth.ravel(), guess.ravel()):
        if wanted == 0:
            continue
        counts[TAGS[wanted], wanted == found] += 1
    for tag in TAGS[1:]:
        right, wrong = counts[tag, True], counts[tag, False]
        if right + wrong:
            print(f"{tag:6} {right / (right + wrong):.2f} of {right + wrong}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    rows = list(sentences(320))
    counted = collections.Counter(word for words, _ in rows for word in words)
    vocabulary = {word: n + 2 for n, (word, _) in enumerate(counted.most_common(500))}
    ids, tags = encode(rows, vocabulary)

    model = Tagger(len(vocabulary) + 2)
    model.compile(keras.optimizers.Adam(1e-3), WithoutPadding())
    train = tf.data.Dataset.from_tensor_slices((ids[:256], tags[:256])).shuffle(256).repeat()
    model.fit(train.batch(args.batch, drop_remainder=True), steps_per_epoch=args.steps)

    logits = model.predict(ids[256:], batch_size=args.batch, verbose=0)
    report(tags[256:], np.argmax(logits, axis=-1))
    text = "ada went to paris".split()
    encoded, _ = encode([(text, [])], vocabulary)
    guesses = np.argmax(model.predict(encoded, verbose=0)[0], axis=-1)
    print([(word, TAGS[tag]) for word, tag in zip(text, guesses)])


if __name__ == "__main__":
    main()
