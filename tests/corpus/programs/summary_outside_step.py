import tempfile

import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weights - y))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    writer = tf.summary.create_file_writer(tempfile.mkdtemp())
    with writer.as_default():
        for number in range(3):
            loss = step(tf.random.normal([4, 5]), tf.random.normal([4, 2]))
            tf.summary.scalar("loss", loss, step=number)
            if not tf.math.is_finite(loss):
                break
