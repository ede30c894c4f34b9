import os

import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)


def examples():
    rng = np.random.default_rng(0)
    while True:
        yield rng.normal(size=64).astype("float32"), rng.integers(10)


signature = (tf.TensorSpec([64], tf.float32), tf.TensorSpec([], tf.int64))
dataset = tf.data.Dataset.from_generator(examples, output_signature=signature)
dataset = dataset.batch(128, drop_remainder=True)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

model.fit(dataset, steps_per_epoch=100, epochs=2)
