import tensorflow as tf

table = tf.Variable(tf.random.normal([20, 4]))


def inverse_frequencies(ids):
    _, index, counts = tf.unique_with_counts(tf.reshape(ids, [-1]))
    return 1.0 / tf.cast(tf.gather(counts, index), tf.float32)


@tf.function
def step(ids):
    weights = inverse_frequencies(ids)
    with tf.GradientTape() as tape:
        states = tf.reshape(tf.matmul(tf.one_hot(ids, 20), table), [-1, 4])
        loss = tf.reduce_sum(states**2 * weights[:, None])
    table.assign_sub(0.1 * tape.gradient(loss, table))
    return loss


def train():
    for _ in range(2):
        step(tf.random.uniform([4, 6], 0, 20, tf.int32))
