"""Evaluation in plain Python: prints, masks, unique classes and metrics outside of traced code."""

import argparse
import collections
import json
import os

import numpy as np
import tensorflow as tf
from tensorflow import keras


def build():
    return keras.Sequential(
        [keras.Input((12,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(4)]
    )


@tf.function
def train_step(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


def evaluate(model, dataset):
    """Eager throughout: nothing here is compiled."""
    wrong = []
    confusion = collections.Counter()
    entropy = keras.metrics.Mean()
    for x, y in dataset:
        logits = model(x, training=False)
        guess = tf.argmax(logits, axis=-1, output_type=tf.int32)
        missed = tf.not_equal(guess, y)
        if tf.reduce_any(missed):
            wrong.append(tf.boolean_mask(x, missed))
            tf.print("missed", tf.reduce_sum(tf.cast(missed, tf.int32)), "in a batch")
        entropy.update_state(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
        confusion.update(zip(y.numpy().tolist(), guess.numpy().tolist()))
        places = tf.where(missed)
        if len(places) > 0 and float(tf.reduce_max(logits)) > 100:
            print("far too sure, at", places[:, 0].numpy())
    kinds, _ = tf.unique(tf.concat([y for _, y in dataset], axis=0))
    return {
        "entropy": float(entropy.result()),
        "wrong": int(sum(len(rows) for rows in wrong)),
        "classes": sorted(int(kind) for kind in kinds),
        "confusion": {f"{a}->{b}": count for (a, b), count in sorted(confusion.items())},
    }


def hardest(model, x, y, count=3):
    losses = keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
    values, places = tf.math.top_k(losses, k=count)
    for value, place in zip(values, places):
        print(f"row {int(place)}: {value.numpy():.2f}, is {int(y[int(place)])}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--every", type=int, default=5)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(640, 12)).astype("float32")
    y = x[:, :4].argmax(axis=1).astype("int32")
    train = tf.data.Dataset.from_tensor_slices((x[:512], y[:512])).shuffle(512).repeat()
    train = train.batch(args.batch, drop_remainder=True)
    test = tf.data.Dataset.from_tensor_slices((x[512:], y[512:]))
    test = test.batch(args.batch, drop_remainder=True)

    model = build()
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(model.trainable_variables)
    smoothed = None
    for step, (features, labels) in enumerate(train.take(args.steps), start=1):
        loss = train_step(model, optimizer, features, labels)
        value = float(loss)
        smoothed = value if smoothed is None else 0.9 * smoothed + 0.1 * value
        if tf.math.is_nan(loss):
            raise SystemExit(f"the loss is lost at step {step}")
        if step % args.every == 0:
            print(f"step {step}: {loss.numpy():.3f} ({smoothed:.3f})")
    result = evaluate(model, test)
    hardest(model, tf.constant(x[512:]), y[512:])
    output = os.environ.get("TPUCTL_OUTPUT")
    if output:
        with tf.io.gfile.GFile(os.path.join(output, "result.json"), "w") as file:
            json.dump(result, file)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
