"""A variational autoencoder: a sampling layer with its own seeds, three tracked losses."""

import argparse
import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

LATENT = 2


class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
        return mean + ops.exp(0.5 * log_variance) * noise


def make_encoder():
    inputs = keras.Input((28, 28, 1))
    x = layers.Conv2D(16, 3, activation="relu", strides=2, padding="same")(inputs)
    x = layers.Conv2D(32, 3, activation="relu", strides=2, padding="same")(x)
    x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
    mean = layers.Dense(LATENT, name="mean")(x)
    log_variance = layers.Dense(LATENT, name="log_variance")(x)
    return keras.Model(inputs, [mean, log_variance, Sampling()([mean, log_variance])])


def make_decoder():
    inputs = keras.Input((LATENT,))
    x = layers.Dense(7 * 7 * 32, activation="relu")(inputs)
    x = layers.Reshape((7, 7, 32))(x)
    x = layers.Conv2DTranspose(32, 3, activation="relu", strides=2, padding="same")(x)
    x = layers.Conv2DTranspose(16, 3, activation="relu", strides=2, padding="same")(x)
    return keras.Model(inputs, layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x))


class Autoencoder(keras.Model):
    def __init__(self, beta=1.0):
        super().__init__()
        self.encoder, self.decoder, self.beta = make_encoder(), make_decoder(), beta
        self.total = keras.metrics.Mean(name="loss")
        self.reconstruction = keras.metrics.Mean(name="reconstruction")
        self.divergence = keras.metrics.Mean(name="divergence")

    @property
    def metrics(self):
        return [self.total, self.reconstruction, self.divergence]

    def losses_of(self, images):
        mean, log_variance, latent = self.encoder(images)
        errors = keras.losses.binary_crossentropy(images, self.decoder(latent))
        reconstruction = ops.mean(ops.sum(errors, axis=(1, 2)))
        divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
        return reconstruction, ops.mean(ops.sum(divergence, axis=1))

    def train_step(self, images):
        with tf.GradientTape() as tape:
            reconstruction, divergence = self.losses_of(images)
            total = reconstruction + self.beta * divergence
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
        return self.tell(total, reconstruction, divergence)

    def test_step(self, images):
        reconstruction, divergence = self.losses_of(images)
        return self.tell(reconstruction + self.beta * divergence, reconstruction, divergence)

    def tell(self, *values):
        for metric, value in zip(self.metrics, values):
            metric.update_state(value)
        return {metric.name: metric.result() for metric in self.metrics}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--beta", type=float, default=1.0)
    args = parser.parse_args()
    output = os.environ.get("TPUCTL_OUTPUT")

    images = np.random.default_rng(0).random((128, 28, 28, 1), dtype="float32")
    train = tf.data.Dataset.from_tensor_slices(images[:96]).repeat()
    train = train.batch(args.batch, drop_remainder=True)
    test = tf.data.Dataset.from_tensor_slices(images[96:]).batch(args.batch, drop_remainder=True)

    strategy = tf.distribute.get_strategy()
    with strategy.scope():
        model = Autoencoder(args.beta)
        model.compile(optimizer=keras.optimizers.Adam(1e-3))
    history = model.fit(train, steps_per_epoch=args.steps, validation_data=test)
    if np.isnan(history.history["loss"]).any():
        raise SystemExit("the loss is lost")

    mean, _, _ = model.encoder.predict(images[:4], verbose=0)
    for row, (a, b) in enumerate(mean):
        print(f"image {row}: {a:+.2f} {b:+.2f}")
    if output is not None:
        model.decoder.save(f"{output}/decoder.keras")


if __name__ == "__main__":
    main()
