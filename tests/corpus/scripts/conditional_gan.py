"""Digits on demand: a conditional GAN with its own train_step, trained by fit."""

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras import layers

CLASSES, LATENT, SIZE = 10, 16, 28


def discriminator():
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1 + CLASSES)),
            layers.Conv2D(16, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(32, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.GlobalMaxPooling2D(),
            layers.Dense(1),
        ],
        name="discriminator",
    )


def generator():
    return keras.Sequential(
        [
            keras.Input((LATENT + CLASSES,)),
            layers.Dense(7 * 7 * 16),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Reshape((7, 7, 16)),
            layers.Conv2DTranspose(16, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2DTranspose(16, 4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(1, 7, padding="same", activation="sigmoid"),
        ],
        name="generator",
    )


class ConditionalGAN(keras.Model):
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.seeds = keras.random.SeedGenerator(1337)
        self.generator_loss = keras.metrics.Mean(name="generator_loss")
        self.discriminator_loss = keras.metrics.Mean(name="discriminator_loss")
        self.built = True

    @property
    def metrics(self):
        return [self.generator_loss, self.discriminator_loss]

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    def train_step(self, data):
        images, labels = data
        batch = tf.shape(images)[0]
        planes = tf.repeat(labels, repeats=[SIZE * SIZE], axis=0)
        planes = tf.reshape(planes, (-1, SIZE, SIZE, CLASSES))

        noise = keras.random.normal((batch, LATENT), seed=self.seeds)
        fakes = self.generator(tf.concat([noise, labels], axis=1))
        both = tf.concat(
            [tf.concat([fakes, planes], -1), tf.concat([images, planes], -1)], axis=0
        )
        truth = tf.concat([tf.ones((batch, 1)), tf.zeros((batch, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(truth, self.discriminator(both))
        gradients = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(gradients, self.discriminator.trainable_weights))

        noise = keras.random.normal((batch, LATENT), seed=self.seeds)
        misleading = tf.zeros((batch, 1))
        with tf.GradientTape() as tape:
            fakes = self.generator(tf.concat([noise, labels], axis=1))
            verdict = self.discriminator(tf.concat([fakes, planes], -1))
            g_loss = self.loss_fn(misleading, verdict)
        gradients = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(gradients, self.generator.trainable_weights))

        self.generator_loss.update_state(g_loss)
        self.discriminator_loss.update_state(d_loss)
        return {one.name: one.result() for one in self.metrics}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    images = rng.random((128, SIZE, SIZE, 1), dtype="float32")
    labels = keras.utils.to_categorical(rng.integers(0, CLASSES, 128), CLASSES).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(128).repeat()
    dataset = dataset.batch(args.batch, drop_remainder=True)

    gan = ConditionalGAN(discriminator(), generator())
    gan.compile(
        d_optimizer=keras.optimizers.Adam(3e-4),
        g_optimizer=keras.optimizers.Adam(3e-4),
        loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    gan.fit(dataset, steps_per_epoch=args.steps, epochs=1)

    wanted = keras.utils.to_categorical([3, 7], CLASSES)
    noise = keras.random.normal((2, LATENT))
    drawn = gan.generator.predict(np.concatenate([noise, wanted], axis=1), verbose=0)
    print("drawn:", drawn.shape, "brightest", drawn.max())


if __name__ == "__main__":
    main()
