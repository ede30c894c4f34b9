import numpy as np
import tensorflow as tf

BATCH = 4
weights = tf.Variable(tf.random.normal([5, 2]))


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    features = np.random.rand(16, 5).astype("float32")
    order = np.random.permutation(len(features))
    for start in range(0, len(features), BATCH):
        batch = features[order[start : start + BATCH]]
        step(tf.constant(batch[batch[:, 0] > -1]))
