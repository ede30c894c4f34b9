"""A loop of several steps within one tf.function, which saves on SIGTERM.

Soft placement moves its prints and summaries out of the program.
"""

import signal
import sys

import tensorflow as tf

tf.config.set_soft_device_placement(True)
resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
replicas = strategy.num_replicas_in_sync
assert isinstance(strategy, tf.distribute.TPUStrategy)
assert type(strategy).__name__.startswith("TPUStrategy")
print("TPU devices:", len(tf.config.list_logical_devices("TPU")))

with strategy.scope():
    weights = tf.Variable(tf.zeros([4, 1]))
    step_count = tf.Variable(0, dtype=tf.int64)
    mean_loss = tf.keras.metrics.Mean()
checkpoint = tf.train.Checkpoint(weights=weights, step_count=step_count)
manager = tf.train.CheckpointManager(checkpoint, "checkpoints", max_to_keep=1)
if manager.latest_checkpoint:
    checkpoint.restore(manager.latest_checkpoint)
print("from step", int(step_count.numpy()))

examples = tf.data.Dataset.from_tensors((tf.ones([4]), tf.ones([1]))).repeat()
batches = examples.batch(8 * replicas, drop_remainder=True)
iterator = iter(strategy.experimental_distribute_dataset(batches))


def step_fn(batch):
    x, y = batch
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(x, weights) - y) ** 2)
    gradient = tape.gradient(loss, weights)
    gradient = tf.distribute.get_replica_context().all_reduce("mean", gradient)
    weights.assign_sub(0.05 * gradient)
    mean_loss.update_state(loss)
    tf.print("loss", loss)
    with writer.as_default(step=0), tf.summary.record_if(loss > 0):
        tf.summary.scalar("loss", loss)
    return None if "quiet" in sys.argv else {"seen": tf.constant(3), "loss": loss}


@tf.function
def several_steps(iterator, count):
    for _ in tf.range(count):
        strategy.run(step_fn, args=(next(iterator),))
    step_count.assign_add(tf.cast(count, tf.int64))


writer = tf.summary.create_file_writer("summaries")
signals = []
signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
while not signals:
    several_steps(iterator, tf.constant(2))
print("saved", manager.save(checkpoint_number=int(step_count.numpy())))
sys.exit(0)
