import tensorflow as tf

table = tf.Variable(tf.random.normal([20, 4]))


@tf.function
def step(mask):
    count = tf.reduce_sum(tf.cast(mask, tf.int32))
    positions = tf.range(count)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(tf.one_hot(positions, 20), table) ** 2)
    table.assign_sub(0.1 * tape.gradient(loss, table))
    return loss


def train():
    for _ in range(2):
        step(tf.random.uniform([4, 4]) < 0.7)
