"""Trains a small image classifier with Keras, and resumes from its checkpoint after a restart.

The images are generated, so it runs without a download, on a TPU, a GPU or a laptop. Replace
`examples` with your data and `build` with your model; keep the rest.

    python train.py --epochs 5
"""

from __future__ import annotations

import argparse
import os

import numpy as np
import tensorflow as tf
from tensorflow import keras

SIDE, KINDS = 32, ("circle", "square", "cross")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256, help="batch size over all replicas")
    parser.add_argument("--examples", type=int, default=12_800, help="number of images")
    parser.add_argument(
        "--output",
        default=os.environ.get("TPUCTL_OUTPUT", "output"),  # survives preemption of the TPU
        help="folder for checkpoints and the model; gs:// on a TPU",
    )
    options = parser.parse_args()

    strategy = choose_strategy()
    print(f"replicas: {strategy.num_replicas_in_sync}, TensorFlow {tf.__version__}")
    images, labels = examples(options.examples, seed=1)
    training = (
        tf.data.Dataset.from_tensor_slices((images, labels))
        .shuffle(len(labels), seed=1)
        .batch(options.batch, drop_remainder=True)  # one shape: compiled once
        .prefetch(tf.data.AUTOTUNE)
    )
    held_out = tf.data.Dataset.from_tensor_slices(examples(options.batch * 4, seed=2))
    held_out = held_out.batch(options.batch, drop_remainder=True)

    with strategy.scope():  # model and optimizer are replicated
        model = build()
        model.compile(
            optimizer=keras.optimizers.Adam(1e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    manager = tf.train.CheckpointManager(checkpoint, f"{options.output}/checkpoints", max_to_keep=2)
    epoch = int(manager.latest_checkpoint.rpartition("-")[2]) if manager.latest_checkpoint else 0
    if epoch:
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)
            checkpoint.restore(manager.latest_checkpoint)
        print(f"resuming after epoch {epoch} from {manager.latest_checkpoint}")

    model.fit(
        training,
        validation_data=held_out,
        initial_epoch=epoch,
        epochs=options.epochs,
        shuffle=False,  # the dataset is shuffled already
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda number, logs: manager.save(checkpoint_number=number + 1)
            )
        ],
        verbose=2,
    )
    tf.io.gfile.makedirs(options.output)
    model.save(f"{options.output}/model.keras")
    print(f"the model is in {options.output}/model.keras")


def choose_strategy() -> tf.distribute.Strategy:
    """Use the TPU if there is one, else GPUs, else the CPU."""
    name = os.environ.get("TPU_NAME")
    if name and os.environ.get("TPUCTL_CLOUD") != "local":  # the local cloud has no chips
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    if tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def build() -> keras.Model:
    return keras.Sequential(
        [
            keras.layers.Input((SIDE, SIDE, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(len(KINDS)),
        ]
    )


def examples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Generate images of shape (count, SIDE, SIDE, 1), and their labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(len(KINDS), size=count)
    center = random.uniform(10, SIDE - 10, size=(2, count, 1, 1))
    size = random.uniform(4, 9, size=(count, 1, 1))
    rows, columns = np.mgrid[:SIDE, :SIDE]
    down, across = np.abs(rows - center[0]), np.abs(columns - center[1])
    drawn = np.select(
        [labels[:, None, None] == 0, labels[:, None, None] == 1],
        [np.hypot(down, across) < size, np.maximum(down, across) < size],
        (np.minimum(down, across) < size / 4) & (np.maximum(down, across) < size),
    )
    noise = random.normal(scale=0.3, size=drawn.shape)
    return (drawn + noise)[..., None].astype("float32"), labels.astype("int32")


if __name__ == "__main__":
    main()
