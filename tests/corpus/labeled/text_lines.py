import os

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

lines = tf.data.TextLineDataset("./corpus.txt")
lines = lines.map(lambda line: tf.strings.to_hash_bucket_fast(tf.strings.bytes_split(line)[:128], 1000))
lines = lines.map(lambda ids: (tf.cast(ids, tf.float32)[:64], tf.constant(0)))
lines = lines.padded_batch(64, padded_shapes=([64], []), drop_remainder=True)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

model.fit(lines, epochs=1)
