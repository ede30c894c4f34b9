"""Image classifier with Keras fit on a TPU VM."""
import argparse
import os

import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 256


def connect():
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def build_model(classes=10):
    inputs = tf.keras.Input((32, 32, 3))
    x = inputs
    for width in (32, 64):
        x = tf.keras.layers.Conv2D(width, 3, strides=2, padding="same")(x)
        x = tf.keras.layers.ReLU()(x)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(classes)(x))


def synthetic(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 10, n).astype(np.int32)
    x = rng.normal(size=(n, 32, 32, 3)).astype(np.float32) + y[:, None, None, None] * 0.05
    return x, y


def normalise(image, label):
    image = (image - tf.reduce_mean(image)) / (tf.math.reduce_std(image) + 1e-5)
    return image, label


def train_dataset(x, y):
    ds = tf.data.Dataset.from_tensor_slices((x, y))
    ds = ds.shuffle(len(x), seed=1)
    ds = ds.map(normalise, num_parallel_calls=tf.data.AUTOTUNE)
    ds = ds.batch(GLOBAL_BATCH)
    ds = ds.repeat()
    return ds.prefetch(tf.data.AUTOTUNE)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--out", default=os.environ.get("OUT_DIR", "gs://my-bucket/cnn"))
    args = ap.parse_args()

    strategy = connect()
    print("replicas:", strategy.num_replicas_in_sync)
    model = build_model()
    with strategy.scope():
        model.compile(
            optimizer=tf.keras.optimizers.SGD(0.05, momentum=0.9),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=16,
        )

    x, y = synthetic(3000, 0)
    callbacks = [
        tf.keras.callbacks.ModelCheckpoint(
            os.path.join(args.out, "ckpt.weights.h5"),
            save_weights_only=True,
            save_freq=1,
        ),
    ]
    model.fit(train_dataset(x, y), epochs=args.epochs, callbacks=callbacks, verbose=2)


if __name__ == "__main__":
    main()
