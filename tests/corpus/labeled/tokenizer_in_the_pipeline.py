import os

import tensorflow as tf
from transformers import AutoTokenizer

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")


def tokenize(text):
    return tokenizer(text.numpy().decode(), max_length=64, padding="max_length", truncation=True)["input_ids"]


lines = tf.data.TextLineDataset("gs://my-bucket/corpus.txt")
ids = lines.map(lambda line: tf.ensure_shape(tf.py_function(tokenize, [line], tf.int32), [64]))
dataset = ids.map(lambda row: (tf.cast(row, tf.float32), 0)).batch(128, drop_remainder=True)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

model.fit(dataset, epochs=2)
