"""Segmentation toy, moved over from a multi-GPU workstation to a TPU VM."""
import os

import numpy as np
import tensorflow as tf

BATCH = 64
SIZE = 32

devices = tf.config.list_physical_devices("GPU")
tf.config.experimental.set_memory_growth(devices[0], True)

strategy = tf.distribute.MirroredStrategy()
print("training on", strategy.num_replicas_in_sync, "devices")


def unet(width=16):
    inp = tf.keras.Input((SIZE, SIZE, 1))
    d1 = tf.keras.layers.Conv2D(width, 3, padding="same", activation="relu")(inp)
    d2 = tf.keras.layers.MaxPool2D()(d1)
    d2 = tf.keras.layers.Conv2D(2 * width, 3, padding="same", activation="relu")(d2)
    up = tf.keras.layers.UpSampling2D()(d2)
    x = tf.keras.layers.Concatenate()([d1, up])
    return tf.keras.Model(inp, tf.keras.layers.Conv2D(1, 1)(x))


def discs(n, seed=0):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:SIZE, :SIZE]
    centre = rng.uniform(8, 24, size=(n, 2, 1, 1))
    masks = ((yy - centre[:, 0]) ** 2 + (xx - centre[:, 1]) ** 2 < 36).astype(np.float32)
    images = masks + rng.normal(scale=0.5, size=masks.shape)
    return images[..., None].astype(np.float32), masks[..., None]


def standardise(images):
    with tf.device("/GPU:0"):
        images = tf.convert_to_tensor(images)
        mean, var = tf.nn.moments(images, axes=[1, 2, 3], keepdims=True)
        return ((images - mean) * tf.math.rsqrt(var + 1e-6)).numpy()


def make_dataset(images, masks):
    ds = tf.data.Dataset.from_tensor_slices((images, masks))
    ds = ds.shuffle(len(images)).batch(BATCH, drop_remainder=True)
    return ds.prefetch(tf.data.AUTOTUNE)


def main():
    images, masks = discs(512)
    images = standardise(images)
    with strategy.scope():
        model = unet()
        model.compile(
            optimizer=tf.keras.optimizers.Adam(1e-3),
            loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
            steps_per_execution=4,
        )
    model.fit(make_dataset(images, masks), epochs=2, verbose=2)
    model.save(os.path.join(os.environ.get("OUT_DIR", "gs://my-bucket/unet"), "model.keras"))


if __name__ == "__main__":
    main()
