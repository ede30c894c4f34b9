"""Trains on a TPU node: a TPU accessed over the network, which reads its data from a bucket.

The first part runs on the controller: it generates images and writes them as TFRecords to the
bucket. The rest runs on the TPU, so the input pipeline cannot use Python code or local files.

    python train.py --steps 200
"""

from __future__ import annotations

import argparse
import os

import numpy as np
import tensorflow as tf

SIDE, KINDS = 32, 3
SHARDS, SHARD = 4, 1024  # files, and examples per file
EXAMPLE = {
    "image": tf.io.FixedLenFeature([SIDE, SIDE, 1], tf.float32),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=256, help="batch size over all replicas")
    parser.add_argument(
        "--steps-per-call", type=int, default=20, help="steps between log lines and checkpoints"
    )
    parser.add_argument(
        "--output",
        default=os.environ.get("TPUCTL_OUTPUT", "output"),  # survives preemption of the TPU
        help="folder for records and checkpoints; gs:// for a TPU node",
    )
    options = parser.parse_args()
    records = f"{options.output}/records"
    write_records(records)

    strategy = choose_strategy()
    print(f"replicas: {strategy.num_replicas_in_sync}, TensorFlow {tf.__version__}")
    batches = iter(strategy.experimental_distribute_dataset(dataset(records, options.batch)))
    with strategy.scope():
        model = build()
        optimizer = tf.keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        step = tf.Variable(0, dtype=tf.int64, name="step")
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)
    manager = tf.train.CheckpointManager(checkpoint, f"{options.output}/checkpoints", max_to_keep=2)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint)
        print(f"resuming after step {step.numpy()}")

    def train(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        images, labels = batch
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
            loss = tf.reduce_sum(losses) / options.batch  # the sum over replicas is the mean
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def take_steps(count: tf.Tensor) -> tf.Tensor:
        """Take several steps without returning to the controller."""
        loss = tf.constant(0.0)
        for _ in tf.range(count):
            replica_losses = strategy.run(train, args=(next(batches),))
            loss = strategy.reduce(tf.distribute.ReduceOp.SUM, replica_losses, axis=None)
        return loss

    while step.numpy() < options.steps:
        count = min(options.steps_per_call, options.steps - int(step.numpy()))
        loss = take_steps(tf.constant(count))
        step.assign_add(count)
        print(f"step {step.numpy()}/{options.steps}  loss {loss.numpy():.4f}", flush=True)
        manager.save(checkpoint_number=int(step.numpy()))


def choose_strategy() -> tf.distribute.Strategy:
    """Use this controller's TPU node if there is one, else the default device."""
    # With the node's addresses, TensorFlow does not query the API, which needs an extra library.
    node = os.environ.get("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS") or os.environ.get("TPU_NAME")
    if not node:
        return tf.distribute.get_strategy()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
        tpu=node, zone=os.environ.get("TPU_ZONE"), project=os.environ.get("TPU_PROJECT")
    )
    tf.config.experimental_connect_to_cluster(resolver)
    if os.environ.get("TPUCTL_CLOUD") == "local":  # its node has only a CPU
        return tf.distribute.OneDeviceStrategy("/job:worker/replica:0/task:0/device:CPU:0")
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def dataset(records: str, batch: int) -> tf.data.Dataset:
    """Return batches of one shape, read from the bucket by the TPU's host."""
    files = [f"{records}/{number}.tfrecord" for number in range(SHARDS)]
    dataset = tf.data.Dataset.from_tensor_slices(files)
    dataset = dataset.interleave(tf.data.TFRecordDataset, cycle_length=SHARDS)
    dataset = dataset.shuffle(4 * batch).repeat().batch(batch, drop_remainder=True)
    return dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def parse(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Parse a whole batch of examples at once, which is much faster."""
    features = tf.io.parse_example(serialized, EXAMPLE)
    return features["image"], tf.cast(features["label"], tf.int32)


def build() -> tf.keras.Model:
    return tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(SIDE, SIDE, 1)),
            tf.keras.layers.Conv2D(16, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.GlobalAveragePooling2D(),
            tf.keras.layers.Dense(KINDS),
        ]
    )


def write_records(folder: str) -> None:
    """Generate circles, squares and crosses and write them, unless the files exist."""
    random = np.random.default_rng(1)
    grid = np.mgrid[:SIDE, :SIDE]
    tf.io.gfile.makedirs(folder)
    for number in range(SHARDS):
        file = f"{folder}/{number}.tfrecord"
        if tf.io.gfile.exists(file):
            continue
        with tf.io.TFRecordWriter(file) as writer:
            for _ in range(SHARD):
                label, size = int(random.integers(KINDS)), random.uniform(4, 9)
                down, across = np.abs(grid - random.uniform(10, SIDE - 10, size=(2, 1, 1)))
                far, is_near = np.maximum(down, across), np.minimum(down, across) < size / 4
                shapes = (np.hypot(down, across) < size, far < size, is_near & (far < size))
                image = shapes[label] + random.normal(scale=0.3, size=far.shape)
                writer.write(example(image.astype("float32"), label))
    print(f"{SHARDS} record files in {folder}")


def example(image: np.ndarray, label: int) -> bytes:
    floats = tf.train.FloatList(value=image.ravel())
    features = {
        "image": tf.train.Feature(float_list=floats),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


if __name__ == "__main__":
    main()
