"""Fine-tuning with transformers on TensorFlow: arrays of one length, fit, a schedule."""

import argparse
import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf
from transformers import DistilBertConfig, TFDistilBertForSequenceClassification

LABELS = {0: "negative", 1: "positive"}


class Tokenizer:
    """Enough of one: words by their hash."""

    def __init__(self, words=500, length=24):
        self.words, self.length = words, length

    def __call__(self, texts):
        ids = np.zeros((len(texts), self.length), "int32")
        for row, text in zip(ids, texts):
            words = [2 + sum(map(ord, word)) % (self.words - 2) for word in text.lower().split()]
            words = words[: self.length]
            row[: len(words)] = words
        return {"input_ids": ids, "attention_mask": (ids > 0).astype("int32")}


def synthetic(count, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    good, bad = ["fine", "warm", "bright"], ["cold", "grey", "bleak"]
    texts = [
        " ".join(["the", "day", "was", *rng.choice(good if label else bad, 4), "and", "long"])
        for label in labels
    ]
    return texts, labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--checkpoint", help="a model's folder or name; a small new one without it")
    args = parser.parse_args()

    try:
        tpu = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ.get("TPU_NAME", ""))
        tf.config.experimental_connect_to_cluster(tpu)
        tf.tpu.experimental.initialize_tpu_system(tpu)
        strategy = tf.distribute.TPUStrategy(tpu)
    except ValueError:
        strategy = tf.distribute.get_strategy()

    tokenizer = Tokenizer()
    texts, labels = synthetic(args.batch * max(args.steps, 1))
    features = tokenizer(texts)
    train = tf.data.Dataset.from_tensor_slices((features, labels))
    train = train.shuffle(len(labels)).batch(args.batch, drop_remainder=True)

    with strategy.scope():
        if args.checkpoint:
            model = TFDistilBertForSequenceClassification.from_pretrained(args.checkpoint)
        else:
            config = DistilBertConfig(
                vocab_size=tokenizer.words, dim=32, n_layers=2, n_heads=2, hidden_dim=64,
                max_position_embeddings=tokenizer.length, id2label=LABELS,
            )
            model = TFDistilBertForSequenceClassification(config)
        schedule = tf.keras.optimizers.schedules.PolynomialDecay(args.rate, args.steps, 0.0)
        model.compile(
            optimizer=tf.keras.optimizers.Adam(schedule),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(train, epochs=1)

    logits = model(tokenizer(["a fine and warm day", "a cold grey day"])).logits
    for row in tf.nn.softmax(logits, axis=-1).numpy():
        best = int(row.argmax())
        print(LABELS[best], f"{row[best]:.2f}")


if __name__ == "__main__":
    main()
