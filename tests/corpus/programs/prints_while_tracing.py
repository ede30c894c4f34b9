import logging

import tensorflow as tf

logger = logging.getLogger(__name__)
weights = tf.Variable(tf.random.normal([5, 2]))


@tf.function
def step(x, y):
    print("tracing step for", x, f"and {y}")
    logger.info("batch of %s", x.shape)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weights - y))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    for number in range(2):
        loss = step(tf.random.normal([4, 5]), tf.random.normal([4, 2]))
        tf.print("step", number, "loss", loss)
