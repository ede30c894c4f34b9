"""Small images into ten classes: augmentation in the input pipeline, a residual network, fit."""

import argparse
import os

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--per-replica", type=int, default=8)
parser.add_argument("--data", help="an .npz with x and y; random pixels without it")
args = parser.parse_args()

SIZE, CLASSES = 32, 10


def detect_strategy():
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(os.environ["TPU_NAME"])
    except (KeyError, ValueError):
        return tf.distribute.get_strategy()
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def load_data():
    if args.data:
        with np.load(args.data) as stored:
            return stored["x"].astype("float32"), stored["y"].astype("int32")
    rng = np.random.default_rng(0)
    return rng.random((256, SIZE, SIZE, 3), dtype="float32"), rng.integers(0, CLASSES, 256)


def augment(image, label):
    image = tf.image.random_flip_left_right(image)
    image = tf.image.resize_with_crop_or_pad(image, SIZE + 4, SIZE + 4)
    image = tf.image.random_crop(image, (SIZE, SIZE, 3))
    image = tf.image.random_brightness(image, 0.1)
    return tf.clip_by_value(image, 0.0, 1.0), label


def make_dataset(x, y, batch, training):
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    if training:
        dataset = dataset.shuffle(len(x), seed=1).repeat()
        dataset = dataset.map(augment, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def block(x, filters, stride):
    shortcut = x
    x = layers.Conv2D(filters, 3, stride, "same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU()(x)
    x = layers.Conv2D(filters, 3, 1, "same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    if stride != 1 or shortcut.shape[-1] != filters:
        shortcut = layers.Conv2D(filters, 1, stride, use_bias=False)(shortcut)
    return layers.ReLU()(layers.Add()([x, shortcut]))


def build_model():
    inputs = keras.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    for filters, stride in [(16, 1), (32, 2), (64, 2)]:
        x = block(x, filters, stride)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(CLASSES)(x))


def main():
    strategy = detect_strategy()
    batch = args.per_replica * strategy.num_replicas_in_sync
    x, y = load_data()
    split = int(0.75 * len(x))
    with strategy.scope():
        model = build_model()
        model.compile(
            optimizer=keras.optimizers.SGD(
                keras.optimizers.schedules.CosineDecay(0.1, args.steps * args.epochs),
                momentum=0.9,
                nesterov=True,
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.summary()
    history = model.fit(
        make_dataset(x[:split], y[:split], batch, training=True),
        validation_data=make_dataset(x[split:], y[split:], batch, training=False),
        steps_per_epoch=args.steps,
        epochs=args.epochs,
    )
    best = max(history.history["val_accuracy"])
    if best > 0.5:
        print("better than chance:", best)
    print(f"final loss {history.history['loss'][-1]:.3f}")


if __name__ == "__main__":
    main()
