"""Images near and far: a siamese network with a distance layer and a triplet loss."""

import argparse

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

SIZE = 32


def triplets(count, seed=0):
    """Anchor and positive share a pattern, the negative has another."""
    rng = np.random.default_rng(seed)
    patterns = rng.random((8, SIZE, SIZE, 3), dtype="float32")
    first = rng.integers(0, 8, count)
    second = (first + rng.integers(1, 8, count)) % 8

    def noisy(which):
        noise = rng.normal(0, 0.1, (count, SIZE, SIZE, 3))
        return np.clip(patterns[which] + noise, 0, 1).astype("float32")

    return noisy(first), noisy(first), noisy(second)


def make_embedding():
    inputs = keras.Input((SIZE, SIZE, 3))
    x = inputs
    for filters in (8, 16):
        x = layers.Conv2D(filters, 3, activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    x = layers.Dense(32, activation="relu")(x)
    x = layers.BatchNormalization()(x)
    return keras.Model(inputs, layers.Dense(16)(x), name="embedding")


class Distances(layers.Layer):
    """Squared distances of the anchor to the two others."""

    def call(self, anchor, positive, negative):
        near = tf.reduce_sum(tf.square(anchor - positive), -1)
        far = tf.reduce_sum(tf.square(anchor - negative), -1)
        return near, far


class Siamese(keras.Model):
    def __init__(self, embedding, margin=0.5):
        super().__init__()
        self.embedding = embedding
        self.distances = Distances()
        self.margin = margin
        self.mean = keras.metrics.Mean(name="loss")

    def call(self, inputs, training=False):
        embedded = [self.embedding(image, training=training) for image in inputs]
        return self.distances(*embedded)

    def triplet_loss(self, data, training):
        near, far = self(data, training=training)
        return tf.reduce_mean(tf.maximum(near - far + self.margin, 0.0))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.triplet_loss(data, training=True)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}

    def test_step(self, data):
        self.mean.update_state(self.triplet_loss(data, training=False))
        return {"loss": self.mean.result()}

    @property
    def metrics(self):
        return [self.mean]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()

    anchors, positives, negatives = triplets(256)
    dataset = tf.data.Dataset.zip(
        tuple(tf.data.Dataset.from_tensor_slices(one) for one in (anchors, positives, negatives))
    )
    train = dataset.take(192).shuffle(192).repeat().batch(args.batch, drop_remainder=True)
    valid = dataset.skip(192).batch(args.batch, drop_remainder=True)

    model = Siamese(make_embedding())
    model.compile(optimizer=keras.optimizers.Adam(1e-3))
    model.fit(train, steps_per_epoch=args.steps, validation_data=valid)

    sample = [anchors[:1], positives[:1], negatives[:1]]
    a, p, n = (model.embedding(one).numpy()[0] for one in sample)
    cosine = lambda u, v: float(np.dot(u, v) / (np.linalg.norm(u) * np.linalg.norm(v) + 1e-9))
    near, far = cosine(a, p), cosine(a, n)
    print("near", round(near, 3), "far", round(far, 3))
    if near <= far:
        print("not learnt yet")


if __name__ == "__main__":
    main()
