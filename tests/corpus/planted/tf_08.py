"""TPU pod slice training with per-host input functions (v5litepod-16)."""
import os

import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 1024
STEPS = 40
EVAL_EVERY = 20
LOGDIR = os.environ.get("LOGDIR", "gs://my-bucket/pod-run/logs")

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ.get("TPU_NAME", "local"))
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

loss_metric = tf.keras.metrics.Mean(name="loss")

with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Input((32,)),
        tf.keras.layers.Dense(128, activation="relu"),
        tf.keras.layers.Dense(5),
    ])
    optimizer = tf.keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    ce = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

writer = tf.summary.create_file_writer(LOGDIR)


def example(i):
    x = tf.random.stateless_normal((32,), seed=tf.stack([i, 7]))
    return x, tf.cast(tf.argmax(x[:5]), tf.int32)


def dataset_fn(ctx):
    ds = tf.data.Dataset.range(100_000)
    ds = ds.shuffle(10_000, seed=11)
    ds = ds.map(example, num_parallel_calls=tf.data.AUTOTUNE).repeat()
    ds = ds.batch(GLOBAL_BATCH, drop_remainder=True)
    return ds.prefetch(tf.data.AUTOTUNE)


def replica_step(x, y):
    with tf.GradientTape() as tape:
        losses = ce(y, model(x, training=True))
        loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    loss_metric.update_state(losses)


@tf.function
def train_step(iterator):
    strategy.run(replica_step, args=next(iterator))


def replica_accuracy(x, y):
    logits = model(x, training=False)
    return tf.reduce_mean(tf.cast(tf.argmax(logits, -1, tf.int32) == y, tf.float32))


@tf.function
def eval_step(iterator):
    acc = strategy.run(replica_accuracy, args=next(iterator))
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, acc, axis=None)


def evaluate(iterator):
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return float(eval_step(iterator))


def main():
    iterator = iter(strategy.distribute_datasets_from_function(dataset_fn))
    eval_iterator = iter(strategy.distribute_datasets_from_function(dataset_fn))
    for step in range(1, STEPS + 1):
        train_step(iterator)
        if step % EVAL_EVERY == 0:
            acc = evaluate(eval_iterator)
            with writer.as_default():
                tf.summary.scalar("accuracy", acc, step=step)
                tf.summary.scalar("loss", loss_metric.result(), step=step)
            print(f"step {step}: loss {float(loss_metric.result()):.4f} accuracy {acc:.3f}")
            loss_metric.reset_state()


if __name__ == "__main__":
    main()
