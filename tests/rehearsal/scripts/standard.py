"""Google's standard script for TPUs: it connects, lists devices, and trains in both usual ways.

Its optimizer creates variables within the step, and its model takes several steps at once.
"""

import os

import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ.get("TPU_NAME"))
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
print("devices", *(device.name.split("/")[-1] for device in tf.config.list_logical_devices()))
strategy = tf.distribute.TPUStrategy(resolver)
count = strategy.num_replicas_in_sync
print("replicas", count, resolver.num_accelerators()["TPU"])
with tf.device("/TPU:0"):
    print("product", float(tf.reduce_sum(tf.matmul(tf.ones([2, 2]), tf.ones([2, 2])))))

x = np.ones([64, 8], np.float32)
y = np.full([64, 1], 2, np.float32)
batches = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(16, drop_remainder=True)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mse", steps_per_execution=2, jit_compile=True)
history = model.fit(batches, steps_per_epoch=4, epochs=2, verbose=0).history["loss"]
print("fit learns", history[1] < history[0])

with strategy.scope():
    weights = tf.Variable(tf.zeros([8, 1]))
    optimizer = tf.keras.optimizers.Adam(0.1)


def step(batch):
    inputs, targets = batch
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((inputs @ weights - targets) ** 2) / 16
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
    return loss


@tf.function
def train(iterator):
    return strategy.reduce("SUM", strategy.run(step, (next(iterator),)), axis=None)


iterator = iter(strategy.experimental_distribute_dataset(batches))
losses = [float(train(iterator)) for _ in range(3)]
print("first loss", losses[0], "then less", losses[2] < losses[0])
