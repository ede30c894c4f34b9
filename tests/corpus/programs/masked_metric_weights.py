import keras
import numpy as np
import tensorflow as tf


def masked_accuracy(y_true, y_pred):
    wanted = tf.cast(tf.squeeze(y_true, -1), tf.int32)
    valid = tf.cast(wanted >= 0, tf.float32)
    given = tf.argmax(y_pred, axis=-1, output_type=tf.int32)
    right = tf.cast(given == wanted, tf.float32) * valid
    return tf.reduce_sum(right) / tf.maximum(tf.reduce_sum(valid), 1.0)


def masked_loss(y_true, y_pred):
    wanted = tf.cast(tf.squeeze(y_true, -1), tf.int32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(wanted, 0), y_pred)
    return tf.where(wanted >= 0, losses, 0.0)


model = keras.Sequential([keras.layers.Dense(3)])
model.compile("adam", masked_loss, metrics=[masked_accuracy], jit_compile="auto")


def train():
    x, y = np.random.rand(8, 5), np.random.randint(-1, 3, (8, 1))
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(4, drop_remainder=True))
