import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))


@tf.function(autograph=False)
def step(x):
    total = 0.0
    for row in tf.range(tf.cast(tf.reduce_sum(x), tf.int32)):
        total += tf.cast(row, tf.float32)
    return tf.reduce_sum(x @ weights) + total


def train():
    for _ in range(2):
        step(tf.ones([4, 5]))
