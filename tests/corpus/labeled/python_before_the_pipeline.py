import os

import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)


def normalise(image):
    return (image - image.mean()) / (image.std() + 1e-6)


x = np.stack([normalise(image) for image in np.random.rand(1024, 64)]).astype("float32")
y = np.random.randint(0, 10, 1024)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).cache().repeat().batch(128, drop_remainder=True)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

model.fit(dataset, steps_per_epoch=8, epochs=2)
