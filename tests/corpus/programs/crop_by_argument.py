import tensorflow as tf

table = tf.Variable(tf.random.normal([10, 4]))


@tf.function
def step(ids, longest):
    ids = ids[:, :longest]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(tf.one_hot(ids, 10), table) ** 2)
    table.assign_sub(0.1 * tape.gradient(loss, table))
    return loss


def train():
    for longest in (3, 4, 5):
        step(tf.random.uniform([4, 6], 0, 10, tf.int32), tf.constant(longest))
