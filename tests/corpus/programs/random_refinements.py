import tensorflow as tf

kernel = tf.Variable(tf.random.normal([6, 6]) * 0.1)


def refine(x):
    turns = tf.cast(tf.random.uniform([], 1.0, 4.0), tf.int32)
    for _ in tf.range(turns):
        x = tf.tanh(x @ kernel)
    return x


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(refine(x) ** 2)
    kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([4, 6]))
