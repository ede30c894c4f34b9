import numpy as np
import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        predictions = x @ weights
        loss = tf.reduce_mean(tf.square(predictions - y))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss, np.array(predictions)


def train():
    for _ in range(2):
        step(tf.random.normal([4, 5]), tf.random.normal([4, 2]))
