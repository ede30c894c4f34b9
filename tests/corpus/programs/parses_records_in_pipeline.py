import tempfile
from pathlib import Path

import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 1]))
FEATURES = {"x": tf.io.FixedLenFeature([5], tf.float32)}


def write_records(path):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(9):
            feature = tf.train.Feature(float_list=tf.train.FloatList(value=[1, 2, 3, 4, 5]))
            example = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
            writer.write(example.SerializeToString())


def dataset(path):
    return (
        tf.data.TFRecordDataset(str(path))
        .batch(4, drop_remainder=True)
        .map(lambda records: tf.io.parse_example(records, FEATURES))
        .map(lambda features: tf.ensure_shape(features["x"], [4, 5]))
    )


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weights))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    with tempfile.TemporaryDirectory() as folder:
        write_records(Path(folder, "train.tfrecord"))
        for x in dataset(Path(folder, "train.tfrecord")):
            step(x)
