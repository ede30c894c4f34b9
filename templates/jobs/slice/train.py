"""Trains on a slice of several hosts with a loop of its own; worker 0 drives the chips of all.

Each replica reads and computes its own share of every batch; gradients are summed between chips.
The batches are made within the pipeline, so that it runs at once; put your TFRecords on gs:// into
`dataset`, since every host reads its share itself.

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
    parser.add_argument("--batch", type=int, default=1024, help="of all replicas together")
    parser.add_argument("--steps-per-call", type=int, default=50, help="between two looks at it")
    parser.add_argument(
        "--output",
        default=os.environ.get("TPUCTL_OUTPUT", "output"),  # kept when a TPU is taken away
        help="where checkpoints go; gs:// on a slice",
    )
    options = parser.parse_args()

    strategy = choose_strategy()
    replicas = strategy.num_replicas_in_sync
    print(f"{replicas} replicas, TensorFlow {tf.__version__}")
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
    kept = tf.train.CheckpointManager(checkpoint, f"{options.output}/checkpoints", max_to_keep=2)
    if kept.latest_checkpoint:
        checkpoint.restore(kept.latest_checkpoint)
        print(f"going on after step {step.numpy()}")

    def train(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        features, labels = batch
        with tf.GradientTape() as tape:
            logits = model(features, training=True)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(each) / options.batch  # summed over replicas it is the mean
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def several(count: tf.Tensor) -> tf.Tensor:
        """Train without coming back to Python in between."""
        loss = tf.constant(0.0)
        for _ in tf.range(count):
            of_replicas = strategy.run(train, args=(next(batches),))
            loss = strategy.reduce(tf.distribute.ReduceOp.SUM, of_replicas, axis=None)
        return loss

    asked_to_end: list[int] = []  # before a spot slice is taken away it is told so
    signal.signal(signal.SIGTERM, lambda number, frame: asked_to_end.append(number))
    while step.numpy() < options.steps and not asked_to_end:
        count = min(options.steps_per_call, options.steps - int(step.numpy()))
        loss = several(tf.constant(count))
        step.assign_add(count)
        print(f"step {step.numpy()}/{options.steps}  loss {loss.numpy():.4f}", flush=True)
        kept.save(checkpoint_number=int(step.numpy()))
    if asked_to_end:
        raise SystemExit(128 + asked_to_end[0])


def choose_strategy() -> tf.distribute.Strategy:
    """The whole slice that TPU_NAME names, else what there is."""
    name = os.environ.get("TPU_NAME")
    if not name or os.environ.get("TPUCTL_CLOUD") == "local":  # which has no chips
        return tf.distribute.get_strategy()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
        tpu=name, zone=os.environ.get("TPU_ZONE"), project=os.environ.get("TPU_PROJECT")
    )
    if name != "local":
        tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def dataset(context: tf.distribute.InputContext, share: int) -> tf.data.Dataset:
    """One host's batches, of one replica's share each: points around the centers of ten clouds."""
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
