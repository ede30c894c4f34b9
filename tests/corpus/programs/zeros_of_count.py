import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))


@tf.function
def step(x, valid):
    count = tf.math.count_nonzero(valid, dtype=tf.int32)
    with tf.GradientTape() as tape:
        padding = tf.zeros([count, 2])
        loss = tf.reduce_mean(tf.concat([x @ weights, padding], axis=0) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([6, 5]), tf.random.uniform([4]) < 0.6)
