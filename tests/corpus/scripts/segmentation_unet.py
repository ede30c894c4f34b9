"""Which pixels are the object: a U-Net, a Dice loss, paired augmentation."""

import argparse

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

SIZE = 32


def discs(count, seed=0):
    rng = np.random.default_rng(seed)
    grid_y, grid_x = np.mgrid[:SIZE, :SIZE]
    images = rng.normal(0.2, 0.1, (count, SIZE, SIZE, 1)).astype("float32")
    masks = np.zeros((count, SIZE, SIZE, 1), "float32")
    for image, mask in zip(images, masks):
        x, y = rng.uniform(8, SIZE - 8, 2)
        inside = (grid_x - x) ** 2 + (grid_y - y) ** 2 < rng.uniform(3, 8) ** 2
        mask[inside] = 1.0
        image[inside] += 0.6
    return images, masks


def augment(image, mask):
    flip = tf.random.uniform(()) > 0.5
    if flip:
        image, mask = tf.image.flip_left_right(image), tf.image.flip_left_right(mask)
    if tf.random.uniform(()) > 0.5:
        image, mask = tf.image.flip_up_down(image), tf.image.flip_up_down(mask)
    return tf.image.random_contrast(image, 0.8, 1.2), mask


def double(x, filters):
    for _ in range(2):
        x = layers.Conv2D(filters, 3, padding="same", kernel_initializer="he_normal")(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
    return x


def unet(widths=(8, 16), middle=32):
    inputs = keras.Input((SIZE, SIZE, 1))
    x, kept = inputs, []
    for width in widths:
        x = double(x, width)
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    x = double(x, middle)
    for width, other in zip(reversed(widths), reversed(kept)):
        x = layers.Conv2DTranspose(width, 2, strides=2, padding="same")(x)
        x = double(layers.Concatenate()([x, other]), width)
    return keras.Model(inputs, layers.Conv2D(1, 1)(x))


def dice_loss(y_true, y_pred, smooth=1.0):
    probability = tf.sigmoid(y_pred)
    both = tf.reduce_sum(y_true * probability, axis=[1, 2, 3])
    either = tf.reduce_sum(y_true + probability, axis=[1, 2, 3])
    dice = 1.0 - (2.0 * both + smooth) / (either + smooth)
    entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=y_true, logits=y_pred)
    return dice + tf.reduce_mean(entropy, axis=[1, 2, 3])


class Overlap(keras.metrics.Metric):
    def __init__(self, name="overlap", **kwargs):
        super().__init__(name=name, **kwargs)
        self.both = self.add_weight(name="both", initializer="zeros")
        self.either = self.add_weight(name="either", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        guess = tf.cast(y_pred > 0, tf.float32)
        self.both.assign_add(tf.reduce_sum(guess * y_true))
        self.either.assign_add(tf.reduce_sum(tf.maximum(guess, y_true)))

    def result(self):
        return tf.math.divide_no_nan(tf.convert_to_tensor(self.both), tf.convert_to_tensor(self.either))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    images, masks = discs(64)
    train = tf.data.Dataset.from_tensor_slices((images, masks)).shuffle(64).repeat()
    train = train.map(augment, num_parallel_calls=tf.data.AUTOTUNE)
    train = train.batch(args.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    strategy = tf.distribute.get_strategy()
    with strategy.scope():
        model = unet()
        model.compile(keras.optimizers.Adam(1e-3), dice_loss, metrics=[Overlap()])
    model.fit(train, steps_per_epoch=args.steps)
    guess = model.predict(images[:2], verbose=0) > 0
    for mask, found in zip(masks[:2], guess):
        union = np.logical_or(mask > 0, found).sum()
        overlap = np.logical_and(mask > 0, found).sum() / union if union else 1.0
        print(f"overlap {overlap:.2f}")


if __name__ == "__main__":
    main()
