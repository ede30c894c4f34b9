"""Reviews into good and bad: words to numbers in the input pipeline, a small transformer."""

import argparse
import random

import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

VOCABULARY, LENGTH = 2000, 64
GOOD = "lovely brilliant moving warm clever".split()
BAD = "dull tired hollow clumsy flat".split()
FILLER = "the film was a story of people and places in a town by the sea".split()


def synthetic(count, seed):
    rng = random.Random(seed)
    texts, labels = [], []
    for _ in range(count):
        label = rng.randint(0, 1)
        words = rng.choices(FILLER, k=rng.randint(5, 40)) + rng.choices(GOOD if label else BAD, k=3)
        rng.shuffle(words)
        texts.append(" ".join(words) + "<br />")
        labels.append(label)
    return texts, labels


@keras.utils.register_keras_serializable("reviews")
def standardise(text):
    text = tf.strings.lower(text)
    text = tf.strings.regex_replace(text, "<br />", " ")
    return tf.strings.regex_replace(text, r"[^a-z ]", "")


class TransformerBlock(layers.Layer):
    def __init__(self, width, heads, hidden, rate=0.1):
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.feed = keras.Sequential([layers.Dense(hidden, "gelu"), layers.Dense(width)])
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
        self.dropouts = [layers.Dropout(rate) for _ in range(2)]

    def call(self, x, mask=None, training=False):
        attended = self.attention(x, x, attention_mask=mask)
        x = self.norms[0](x + self.dropouts[0](attended, training=training))
        return self.norms[1](x + self.dropouts[1](self.feed(x), training=training))


class Classifier(keras.Model):
    def __init__(self, width=32):
        super().__init__()
        self.tokens = layers.Embedding(VOCABULARY, width)
        self.positions = layers.Embedding(LENGTH, width)
        self.blocks = [TransformerBlock(width, 2, 64) for _ in range(2)]
        self.head = layers.Dense(1)

    def call(self, ids, training=False):
        mask = tf.not_equal(ids, 0)
        x = self.tokens(ids) + self.positions(tf.range(LENGTH))[tf.newaxis]
        for block in self.blocks:
            x = block(x, mask=mask[:, tf.newaxis, :], training=training)
        weights = tf.cast(mask, x.dtype)[..., tf.newaxis]
        pooled = tf.reduce_sum(x * weights, axis=1) / tf.reduce_sum(weights, axis=1)
        return self.head(pooled)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()

    resolver = None
    if tf.config.list_physical_devices("TPU"):
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver) if resolver else tf.distribute.get_strategy()

    texts, labels = synthetic(512, seed=1)
    vectorise = layers.TextVectorization(
        max_tokens=VOCABULARY, standardize=standardise, output_sequence_length=LENGTH
    )
    vectorise.adapt(tf.data.Dataset.from_tensor_slices(texts).batch(128))
    print("words known:", len(vectorise.get_vocabulary()))

    dataset = tf.data.Dataset.from_tensor_slices((texts, labels)).shuffle(512).repeat()
    dataset = dataset.batch(args.batch, drop_remainder=True)
    dataset = dataset.map(lambda text, label: (vectorise(text), label)).prefetch(2)

    with strategy.scope():
        model = Classifier()
        model.compile(
            keras.optimizers.Adam(1e-3),
            keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
        )
    model.fit(dataset, steps_per_epoch=args.steps, epochs=1)

    for text in ["a lovely and clever film", "a dull and flat film"]:
        score = float(model(vectorise([text]))[0, 0])
        print(f"{text!r}: {'good' if score > 0 else 'bad'} ({score:.2f})")


if __name__ == "__main__":
    main()
