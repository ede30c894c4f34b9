import argparse
import os

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--output", required=True)
args = parser.parse_args()

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

save = tf.keras.callbacks.ModelCheckpoint(os.path.join(args.output, "best.keras"), save_best_only=True)
board = tf.keras.callbacks.TensorBoard(os.path.join(args.output, "logs"))
model.fit(tf.zeros([1024, 64]), tf.zeros([1024]), batch_size=128, epochs=3, callbacks=[save, board])
