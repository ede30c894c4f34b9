"""A DCGAN with a training loop of its own: two optimizers, one traced step, samples by epoch."""

import argparse
import os
import time

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

NOISE = 32


def make_generator():
    model = tf.keras.Sequential()
    model.add(tf.keras.Input((NOISE,)))
    model.add(layers.Dense(7 * 7 * 32, use_bias=False))
    model.add(layers.BatchNormalization())
    model.add(layers.LeakyReLU())
    model.add(layers.Reshape((7, 7, 32)))
    for filters, stride in [(16, 1), (8, 2)]:
        model.add(layers.Conv2DTranspose(filters, 5, strides=stride, padding="same", use_bias=False))
        model.add(layers.BatchNormalization())
        model.add(layers.LeakyReLU())
    model.add(layers.Conv2DTranspose(1, 5, strides=2, padding="same", activation="tanh"))
    assert model.output_shape == (None, 28, 28, 1)
    return model


def make_discriminator():
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            layers.Conv2D(8, 5, strides=2, padding="same"),
            layers.LeakyReLU(),
            layers.Dropout(0.3),
            layers.Conv2D(16, 5, strides=2, padding="same"),
            layers.LeakyReLU(),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--batch", type=int, default=16)
args = parser.parse_args()

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
    strategy = tf.distribute.TPUStrategy(tpu)
except ValueError:
    strategy = tf.distribute.get_strategy()

with strategy.scope():
    generator = make_generator()
    discriminator = make_discriminator()
    generator_optimizer = tf.keras.optimizers.Adam(1e-4)
    discriminator_optimizer = tf.keras.optimizers.Adam(1e-4)
    generator_optimizer.build(generator.trainable_variables)
    discriminator_optimizer.build(discriminator.trainable_variables)
    entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")
    checkpoint = tf.train.Checkpoint(generator=generator, discriminator=discriminator)

output = os.environ.get("TPUCTL_OUTPUT", "")
manager = None
if output:
    manager = tf.train.CheckpointManager(checkpoint, output + "/dcgan", max_to_keep=2)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint)
        print("goes on from", manager.latest_checkpoint)


def average(losses):
    return tf.nn.compute_average_loss(tf.reshape(losses, [-1]), global_batch_size=args.batch)


def replica_step(images):
    noise = tf.random.normal([tf.shape(images)[0], NOISE])
    with tf.GradientTape() as generator_tape, tf.GradientTape() as discriminator_tape:
        fakes = generator(noise, training=True)
        real = discriminator(images, training=True)
        fake = discriminator(fakes, training=True)
        generator_loss = average(entropy(tf.ones_like(fake), fake))
        discriminator_loss = average(entropy(tf.ones_like(real), real))
        discriminator_loss += average(entropy(tf.zeros_like(fake), fake))
    gradients = generator_tape.gradient(generator_loss, generator.trainable_variables)
    generator_optimizer.apply_gradients(zip(gradients, generator.trainable_variables))
    gradients = discriminator_tape.gradient(discriminator_loss, discriminator.trainable_variables)
    discriminator_optimizer.apply_gradients(zip(gradients, discriminator.trainable_variables))
    return generator_loss, discriminator_loss


@tf.function
def train_step(images):
    losses = strategy.run(replica_step, args=(images,))
    return [strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None) for loss in losses]


pixels = np.random.default_rng(0).uniform(-1, 1, (128, 28, 28, 1)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices(pixels).shuffle(128).repeat()
dataset = strategy.experimental_distribute_dataset(dataset.batch(args.batch, drop_remainder=True))

began = time.time()
for step, images in enumerate(dataset):
    if step == args.steps:
        break
    generator_loss, discriminator_loss = train_step(images)
    if step % 10 == 0:
        print(f"step {step}: {float(generator_loss):.3f} {float(discriminator_loss):.3f}")
    if float(discriminator_loss) < 1e-3:
        print("the discriminator has won")
        break
if manager is not None:
    manager.save()
samples = generator(tf.random.normal([4, NOISE]), training=False)
print("samples", samples.shape, f"after {time.time() - began:.1f} s")
