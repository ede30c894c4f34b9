import tensorflow as tf

cost = tf.Variable(tf.random.uniform([5, 5]))


def sinkhorn(matrix, tolerance):
    kernel = tf.exp(-matrix)
    error = tf.constant(1.0)
    while error > tolerance:
        kernel = kernel / tf.reduce_sum(kernel, axis=1, keepdims=True)
        kernel = kernel / tf.reduce_sum(kernel, axis=0, keepdims=True)
        error = tf.reduce_max(tf.abs(tf.reduce_sum(kernel, axis=1) - 1.0))
    return kernel


@tf.function
def step(target):
    with tf.GradientTape() as tape:
        plan = sinkhorn(cost, 0.01)
        loss = tf.reduce_sum(plan * target)
    cost.assign_sub(0.1 * tape.gradient(loss, cost))
    return loss


def train():
    for _ in range(2):
        step(tf.random.uniform([5, 5]))
