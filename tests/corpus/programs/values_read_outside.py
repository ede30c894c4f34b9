import numpy as np
import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weights - y))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    best = float("inf")
    seen = []
    for _ in range(4):
        loss = step(tf.random.normal([4, 5]), tf.random.normal([4, 2]))
        seen.append(loss.numpy())
        if loss < best:
            best = float(loss)
        if int(tf.size(weights)) != 10:
            raise ValueError(f"weights are {weights.shape}")
    kinds = tf.unique(tf.constant([1, 2, 1])).y
    large = tf.boolean_mask(weights, weights > 0)
    print(np.mean(seen), best, kinds[: int(kinds[0])], large.shape, tf.where(weights > 1))
