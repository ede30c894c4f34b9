import tensorflow as tf


def parse(record):
    features = {"x": tf.io.FixedLenFeature([64], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
    example = tf.io.parse_single_example(record, features)
    return example["x"], example["y"]


def make(batch):
    dataset = tf.data.TFRecordDataset("records/train.tfrecord")
    return dataset.map(parse).batch(batch, drop_remainder=True)
