import os

import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)


def examples(count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield rng.normal(size=64).astype("float32"), rng.integers(10)


pairs = list(examples(4096))
x, y = np.stack([a for a, _ in pairs]), np.array([b for _, b in pairs])
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(128, drop_remainder=True)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

model.fit(dataset, epochs=2)
