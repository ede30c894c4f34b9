import math

import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))


class Loop:
    @tf.function
    def step(self, x, rate):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights) ** 2)
        weights.assign_sub(rate * tape.gradient(loss, weights))
        return loss


def train():
    loop = Loop()
    for epoch in range(3):
        rate = 0.1 * math.exp(-0.1 * epoch)
        loop.step(tf.random.normal([4, 5]), rate=rate)
