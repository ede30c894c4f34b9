import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

statistics = tf.data.Dataset.from_tensor_slices(np.zeros([1000, 64], "float32")).batch(100)
mean = sum(float(tf.reduce_mean(rows)) for rows in statistics) / 10
model.fit(np.zeros([1024, 64]) - mean, np.zeros([1024]), batch_size=128)
