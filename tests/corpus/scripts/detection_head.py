"""A detection head on a small backbone: focal loss, boxes where there is an object, static shapes."""

import argparse

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

SIZE, STRIDE, CLASSES, MOST = 64, 8, 3, 8
GRID = SIZE // STRIDE


def scenes(count, seed=0):
    """Images with up to MOST boxes; boxes that are not there are zeros."""
    rng = np.random.default_rng(seed)
    images = rng.random((count, SIZE, SIZE, 3), dtype="float32") * 0.2
    boxes = np.zeros((count, MOST, 4), "float32")
    classes = np.full((count, MOST), -1, "int32")
    for n in range(count):
        for k in range(rng.integers(1, MOST)):
            x, y = rng.uniform(0, 0.7, 2)
            w, h = rng.uniform(0.1, 0.3, 2)
            kind = rng.integers(CLASSES)
            boxes[n, k] = x, y, x + w, y + h
            classes[n, k] = kind
            left, top = int(x * SIZE), int(y * SIZE)
            images[n, top : top + int(h * SIZE), left : left + int(w * SIZE), kind] = 1.0
    return images, boxes, classes


def assign(image, boxes, classes):
    """Targets of each cell: which class is there, and its box; all of fixed shapes."""
    there = tf.cast(classes >= 0, tf.float32)
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    cells = tf.cast(tf.clip_by_value(centres * GRID, 0, GRID - 1), tf.int32)
    flat = cells[:, 1] * GRID + cells[:, 0]
    hot = tf.one_hot(flat, GRID * GRID) * there[:, tf.newaxis]
    kinds = tf.einsum("kc,kn->nc", tf.one_hot(classes, CLASSES), hot)
    places = tf.einsum("kd,kn->nd", boxes, hot)
    number = tf.reduce_sum(hot, axis=0)[:, tf.newaxis]
    places = tf.math.divide_no_nan(places, number)
    targets = tf.concat([tf.minimum(kinds, 1.0), places, tf.minimum(number, 1.0)], axis=-1)
    return image, tf.ensure_shape(targets, (GRID * GRID, CLASSES + 5))


def backbone():
    inputs = keras.Input((SIZE, SIZE, 3))
    x = inputs
    for filters in (8, 16, 32):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.Activation("swish")(x)
    kinds = layers.Conv2D(CLASSES, 3, padding="same", bias_initializer=keras.initializers.Constant(-4.6))(x)
    places = layers.Conv2D(4, 3, padding="same", activation="sigmoid")(x)
    outputs = layers.Concatenate()([kinds, places])
    return keras.Model(inputs, layers.Reshape((GRID * GRID, CLASSES + 4))(outputs))


class DetectionLoss(keras.losses.Loss):
    def __init__(self, alpha=0.25, gamma=2.0, delta=0.1):
        super().__init__(name="detection")
        self.alpha, self.gamma, self.delta = alpha, gamma, delta

    def focal(self, wanted, logits):
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=wanted, logits=logits)
        probability = tf.nn.sigmoid(logits)
        alpha = tf.where(tf.equal(wanted, 1.0), self.alpha, 1.0 - self.alpha)
        right = tf.where(tf.equal(wanted, 1.0), probability, 1.0 - probability)
        return tf.reduce_sum(alpha * tf.pow(1.0 - right, self.gamma) * entropy, axis=-1)

    def smooth(self, wanted, found):
        difference = tf.abs(wanted - found)
        square = 0.5 * difference**2
        return tf.reduce_sum(
            tf.where(difference < self.delta, square / self.delta, difference - 0.5 * self.delta), -1
        )

    def call(self, y_true, y_pred):
        kinds, places, there = tf.split(y_true, [CLASSES, 4, 1], axis=-1)
        there = tf.squeeze(there, -1)
        number = tf.maximum(tf.reduce_sum(there, axis=-1, keepdims=True), 1.0)
        focal = self.focal(kinds, y_pred[..., :CLASSES]) / number
        boxes = there * self.smooth(places, y_pred[..., CLASSES:]) / number
        return focal + boxes


def decode(outputs, score=0.05, most=5):
    """On the host, after predict: what is seen, best first."""
    probabilities = 1 / (1 + np.exp(-outputs[..., :CLASSES]))
    best = probabilities.max(-1)
    order = np.argsort(-best)[:most]
    return [(int(probabilities[n].argmax()), float(best[n]), outputs[n, CLASSES:]) for n in order if best[n] > score]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    images, boxes, classes = scenes(64)
    dataset = tf.data.Dataset.from_tensor_slices((images, boxes, classes)).shuffle(64).repeat()
    dataset = dataset.map(assign, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.batch(args.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    model = backbone()
    model.compile(keras.optimizers.Adam(1e-3), DetectionLoss())
    model.fit(dataset, steps_per_epoch=args.steps)
    for kind, score, box in decode(model.predict(images[:1], verbose=0)[0]):
        print(kind, f"{score:.2f}", np.round(box, 2))


if __name__ == "__main__":
    main()
