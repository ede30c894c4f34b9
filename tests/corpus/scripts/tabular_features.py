"""A table with numbers and words: preprocessing layers adapted once and run in the input pipeline."""

import argparse
import csv
import os

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

NUMBERS = ["age", "weight", "visits"]
WORDS = ["kind", "colour"]


def synthetic(count, seed=0):
    rng = np.random.default_rng(seed)
    table = {
        "age": rng.integers(0, 15, count).astype("float32"),
        "weight": rng.uniform(1, 40, count).astype("float32"),
        "visits": rng.poisson(3, count).astype("float32"),
        "kind": rng.choice(["cat", "dog"], count),
        "colour": rng.choice(["black", "white", "brown", "grey"], count),
    }
    label = ((table["age"] < 5) ^ (table["kind"] == "cat")).astype("int32")
    return table, label


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    table = {name: np.array([float(row[name]) for row in rows], "float32") for name in NUMBERS}
    table |= {name: np.array([row[name] for row in rows]) for name in WORDS}
    return table, np.array([int(row["label"]) for row in rows])


def make_preprocessing(table):
    prepared = {}
    for name in NUMBERS:
        layer = layers.Normalization(axis=None)
        layer.adapt(table[name])
        prepared[name] = layer
    for name in WORDS:
        layer = layers.StringLookup(output_mode="one_hot")
        layer.adapt(table[name])
        prepared[name] = layer
    return prepared


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--csv")
    args = parser.parse_args()
    table, label = read(args.csv) if args.csv else synthetic(512)
    preprocessing = make_preprocessing(table)

    def prepare(row, label):
        columns = [preprocessing[name](row[name][:, tf.newaxis]) for name in NUMBERS]
        columns += [tf.cast(preprocessing[name](row[name]), tf.float32) for name in WORDS]
        return tf.concat(columns, axis=-1), label

    dataset = tf.data.Dataset.from_tensor_slices((table, label)).shuffle(512, seed=2)
    train = dataset.skip(128).repeat().batch(args.batch, drop_remainder=True)
    train = train.map(prepare, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    valid = dataset.take(128).batch(args.batch, drop_remainder=True).map(prepare).cache()
    width = train.element_spec[0].shape[-1] or next(iter(valid))[0].shape[-1]

    name = os.environ.get("TPU_NAME", "")
    if name:
        tpu = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        tf.config.experimental_connect_to_cluster(tpu)
        tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.TPUStrategy(tpu) if name else tf.distribute.get_strategy()

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((width,)),
                layers.Dense(32, activation="relu"),
                layers.Dropout(0.3),
                layers.Dense(1),
            ]
        )
        model.compile(
            optimizer="adam",
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[keras.metrics.AUC(from_logits=True)],
        )
    model.fit(train, steps_per_epoch=args.steps, validation_data=valid)
    sample = {key: values[:3] for key, values in table.items()}
    features, _ = prepare({k: tf.constant(v) for k, v in sample.items()}, None)
    for score in tf.nn.sigmoid(model(features)).numpy().ravel():
        print(f"{100 * score:.0f} % likely")


if __name__ == "__main__":
    main()
