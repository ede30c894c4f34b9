import os

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)


def parse(record):
    raw = tf.io.decode_raw(record, tf.uint8)
    return tf.cast(raw[1:65], tf.float32) / 255.0, tf.cast(raw[0], tf.int32)


dataset = tf.data.FixedLengthRecordDataset("/mnt/disk/cifar.bin", 3073)
dataset = dataset.map(parse).batch(128, drop_remainder=True)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

model.fit(dataset, epochs=1)
