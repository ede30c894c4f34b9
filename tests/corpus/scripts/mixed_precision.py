"""bfloat16 on a TPU, float16 with a scaled loss on GPUs, float32 elsewhere."""

import argparse
import os

import numpy as np
import tensorflow as tf
from tensorflow import keras

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--precision", choices=["auto", "float32", "bfloat16"], default="auto")
options = parser.parse_args()


def devices():
    if os.environ.get("TPU_NAME"):
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(os.environ["TPU_NAME"])
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return "tpu", tf.distribute.TPUStrategy(resolver)
    if tf.config.list_physical_devices("GPU"):
        return "gpu", tf.distribute.MirroredStrategy()
    return "cpu", tf.distribute.get_strategy()


kind, strategy = devices()
policy = {"tpu": "mixed_bfloat16", "gpu": "mixed_float16", "cpu": "float32"}[kind]
if options.precision == "float32":
    policy = "float32"
elif options.precision == "bfloat16":
    policy = "mixed_bfloat16"
keras.mixed_precision.set_global_policy(policy)
print("policy:", keras.mixed_precision.global_policy().name)


def build():
    inputs = keras.Input((32, 32, 3))
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    for filters in (16, 32):
        x = keras.layers.SeparableConv2D(filters, 3, strides=2, padding="same")(x)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.ReLU(max_value=6)(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Dropout(0.2)(x)
    x = keras.layers.Dense(5)(x)
    return keras.Model(inputs, keras.layers.Activation("softmax", dtype="float32")(x))


rng = np.random.default_rng(0)
pixels = rng.integers(0, 256, (256, 32, 32, 3)).astype("float32")
labels = rng.integers(0, 5, 256)
train = tf.data.Dataset.from_tensor_slices((pixels, labels)).shuffle(256).repeat()
train = train.batch(options.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

with strategy.scope():
    model = build()
    model.compile(
        optimizer=keras.optimizers.RMSprop(1e-3),
        loss="sparse_categorical_crossentropy",
        metrics=["sparse_categorical_accuracy"],
        steps_per_execution=1 if kind == "cpu" else 50,
    )

history = model.fit(train, steps_per_epoch=options.steps, epochs=1, verbose=2)
loss = history.history["loss"][0]
if not np.isfinite(loss):
    raise SystemExit(f"the loss is {loss} under {policy}")
outputs = model.predict(pixels[:8], verbose=0)
print("dtype of what comes out:", outputs.dtype, "rows sum to", outputs.sum(axis=1).round(3)[:2])
for layer in model.layers[:3]:
    print(layer.name, layer.compute_dtype, layer.variable_dtype)
