import os

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

DATA = "gs://my-bucket/mnist"


def parse(record):
    features = {"x": tf.io.FixedLenFeature([64], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, features)
    return example["x"], example["y"]


files = [os.path.join(DATA, f"train-{shard:05d}.tfrecord") for shard in range(16)]
dataset = tf.data.TFRecordDataset(files).map(parse)
dataset = dataset.shuffle(1024).batch(128, drop_remainder=True).prefetch(2)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

model.fit(dataset, epochs=2)
