"""Language modelling on a TPU from TFRecords in a bucket: own loop, many steps a call, resumes."""

import argparse
import os
import signal
import sys
import time

import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers


def flags():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="gs://bucket/folder with *.tfrecord; synthetic without it")
    parser.add_argument("--output", default=os.environ.get("TPUCTL_OUTPUT"))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--inner", type=int, default=2, help="steps in one call")
    parser.add_argument("--per-replica", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--words", type=int, default=256)
    return parser.parse_args()


FLAGS = flags()


def connect():
    if "TPU_NAME" not in os.environ:
        print("no TPU: training on", tf.config.list_logical_devices()[0].name, file=sys.stderr)
        return tf.distribute.get_strategy()
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(os.environ["TPU_NAME"])
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def parse(record):
    example = tf.io.parse_single_example(
        record, {"ids": tf.io.FixedLenFeature([FLAGS.length + 1], tf.int64)}
    )
    ids = tf.cast(example["ids"], tf.int32)
    return ids[:-1], ids[1:]


def dataset(batch, seen):
    if FLAGS.data:
        files = tf.data.Dataset.list_files(os.path.join(FLAGS.data, "*.tfrecord"), seed=1)
        rows = files.interleave(
            tf.data.TFRecordDataset, cycle_length=8, num_parallel_calls=tf.data.AUTOTUNE
        )
        rows = rows.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    else:
        ids = tf.random.stateless_uniform([64, FLAGS.length + 1], (1, 2), 0, FLAGS.words, tf.int32)
        rows = tf.data.Dataset.from_tensor_slices((ids[:, :-1], ids[:, 1:]))
    rows = rows.shuffle(1000, seed=1).repeat().batch(batch, drop_remainder=True)
    return rows.skip(seen).prefetch(tf.data.AUTOTUNE)


def build():
    inputs = keras.Input((FLAGS.length,), dtype="int32")
    x = layers.Embedding(FLAGS.words, 32)(inputs)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(2, 16)(y, y, use_causal_mask=True)
        y = layers.Dense(64, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(32)(y)
    return keras.Model(inputs, layers.Dense(FLAGS.words)(x))


strategy = connect()
batch = FLAGS.per_replica * strategy.num_replicas_in_sync

with strategy.scope():
    model = build()
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=0.01)
    optimizer.build(model.trainable_variables)
    step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    mean = keras.metrics.Mean()


def replica(ids, labels):
    with tf.GradientTape() as tape:
        logits = model(ids, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.nn.compute_average_loss(tf.reduce_mean(losses, -1), global_batch_size=batch)
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    mean.update_state(loss * strategy.num_replicas_in_sync)


@tf.function
def many(iterator, count):
    for _ in tf.range(count):
        strategy.run(replica, args=next(iterator))


def main():
    manager = None
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)
    if FLAGS.output:
        manager = tf.train.CheckpointManager(checkpoint, f"{FLAGS.output}/checkpoints", 3)
        checkpoint.restore(manager.latest_checkpoint)
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))

    iterator = iter(strategy.experimental_distribute_dataset(dataset(batch, int(step))))
    inner = tf.constant(FLAGS.inner)
    while int(step) < FLAGS.steps:
        began = time.perf_counter()
        many(iterator, inner)
        step.assign_add(FLAGS.inner)
        rate = FLAGS.inner / (time.perf_counter() - began)
        print(f"step {int(step)} loss {float(mean.result()):.4f} at {rate:.1f}/s", flush=True)
        mean.reset_state()
        if manager is not None and (asked or int(step) % 100 == 0):
            manager.save(int(step))
        if asked:
            return 143
    if manager is not None:
        manager.save(int(step))
    return 0


if __name__ == "__main__":
    sys.exit(main())
