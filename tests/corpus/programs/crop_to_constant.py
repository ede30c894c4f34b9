import tensorflow as tf

LONGEST = 4
table = tf.Variable(tf.random.normal([10, 4]))


@tf.function
def step(ids, training=True):
    ids = ids[:, :LONGEST]
    half = ids.shape[0] // 2
    first, second = ids[:half], ids[half:]
    if training:
        first = tf.reverse(first, axis=[1])
    with tf.GradientTape() as tape:
        states = tf.matmul(tf.one_hot(tf.concat([first, second], 0), 10), table)
        loss = tf.reduce_mean(states**2)
    table.assign_sub(0.1 * tape.gradient(loss, table))
    return loss


def train():
    for _ in range(2):
        step(tf.random.uniform([4, 6], 0, 10, tf.int32))
