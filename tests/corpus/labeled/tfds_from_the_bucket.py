import os

import tensorflow as tf
import tensorflow_datasets as tfds

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)


def prepare(image, label):
    return tf.reshape(tf.cast(image, tf.float32) / 255.0, [784]), label


dataset = tfds.load("mnist", split="train", as_supervised=True, try_gcs=True)
dataset = dataset.map(prepare).cache().shuffle(10_000).batch(200, drop_remainder=True)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

model.fit(dataset, epochs=5)
