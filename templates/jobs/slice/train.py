"""Trains on a slice of several hosts with a custom loop; worker 0 drives the chips of all hosts.

Each replica computes its share of every batch; gradients are summed between chips. The batches are
generated, so it runs without data; replace `dataset` with your TFRecords on gs://, as every host
reads its own share.

    python train.py --steps 500
"""

from __future__ import annotations

import argparse
import os
import signal

import tensorflow as tf

WIDTH, KINDS = 64, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=1024, help="batch size over all replicas")
    parser.add_argument(
        "--steps-per-call", type=int, default=50, help="steps between log lines and checkpoints"
    )
    parser.add_argument(
        "--output",
        default=os.environ.get("TPUCTL_OUTPUT", "output"),  # survives preemption of the TPU
        help="folder for checkpoints; gs:// on a slice",
    )
    options = parser.parse_args()

    strategy = choose_strategy()
    replicas = strategy.num_replicas_in_sync
    print(f"replicas: {replicas}, TensorFlow {tf.__version__}")
    if options.batch % replicas:
        parser.error(f"--batch {options.batch} is not a multiple of {replicas} replicas")
    share = options.batch // replicas
    shares = strategy.distribute_datasets_from_function(lambda context: dataset(context, share))
    batches = iter(shares)

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
        features, labels = batch
        with tf.GradientTape() as tape:
            logits = model(features, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / options.batch  # the sum over replicas is the mean
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def take_steps(count: tf.Tensor) -> tf.Tensor:
        """Take several steps without returning to Python."""
        loss = tf.constant(0.0)
        for _ in tf.range(count):
            replica_losses = strategy.run(train, args=(next(batches),))
            loss = strategy.reduce(tf.distribute.ReduceOp.SUM, replica_losses, axis=None)
        return loss

    signals: list[int] = []  # a spot slice gets SIGTERM before preemption
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    while step.numpy() < options.steps and not signals:
        count = min(options.steps_per_call, options.steps - int(step.numpy()))
        loss = take_steps(tf.constant(count))
        step.assign_add(count)
        print(f"step {step.numpy()}/{options.steps}  loss {loss.numpy():.4f}", flush=True)
        manager.save(checkpoint_number=int(step.numpy()))
    if signals:
        raise SystemExit(128 + signals[0])


def choose_strategy() -> tf.distribute.Strategy:
    """Use the whole slice in TPU_NAME if it is set, else the default device."""
    name = os.environ.get("TPU_NAME")
    if not name or os.environ.get("TPUCTL_CLOUD") == "local":  # the local cloud has no chips
        return tf.distribute.get_strategy()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
        tpu=name, zone=os.environ.get("TPU_ZONE"), project=os.environ.get("TPU_PROJECT")
    )
    if name != "local":
        tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def dataset(context: tf.distribute.InputContext, share: int) -> tf.data.Dataset:
    """Return a host's batches, one replica's share each: points around the centers of clusters."""
    centers = tf.random.stateless_normal([KINDS, WIDTH], seed=[1, 1])

    def batch(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        seed = tf.stack([number, tf.constant(context.input_pipeline_id, tf.int64)])
        labels = tf.random.stateless_uniform([share], seed, maxval=KINDS, dtype=tf.int32)
        noise = tf.random.stateless_normal([share, WIDTH], seed, stddev=2.0)
        return tf.gather(centers, labels) + noise, labels

    return tf.data.Dataset.counter().map(batch, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def build() -> tf.keras.Model:
    return tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(shape=(WIDTH,)),
            tf.keras.layers.Dense(256, activation="relu"),
            tf.keras.layers.Dropout(0.1),
            tf.keras.layers.Dense(KINDS),
        ]
    )


if __name__ == "__main__":
    main()
