import os

import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

# Read here, on the machine that the script runs on: a TPU node gets it over the wire.
stored = np.load("train.npz")
x, y = stored["x"].astype("float32"), stored["y"]
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(128, drop_remainder=True)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

model.fit(dataset, epochs=2)
