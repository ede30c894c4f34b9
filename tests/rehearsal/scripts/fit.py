"""Keras' fit with a checkpoint after each epoch, more fitting later, evaluation and prediction."""

import sys

import numpy as np
import tensorflow as tf

keras = tf.keras
resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
strategy = getattr(tf.distribute, "TPUStrategy", tf.distribute.experimental.TPUStrategy)(resolver)
print("replicas", strategy.num_replicas_in_sync)
with strategy.scope():
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse", metrics=["mae"])
x = np.ones([960, 8], np.float32)
y = np.full([960, 1], 2, np.float32)
batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=True)
save = keras.callbacks.ModelCheckpoint("best.weights.h5", save_weights_only=True)
history = model.fit(batches, epochs=5, callbacks=[save], validation_data=batches, verbose=0)
print("epochs", len(history.epoch), "logs", sorted(history.history))
print("rows", model.predict(x, verbose=0).shape)
model.evaluate(batches, verbose=0)
if "again" in sys.argv:
    model.fit(batches, epochs=1, verbose=0)
    print("went on")
model.load_weights("best.weights.h5")
print("finished")
