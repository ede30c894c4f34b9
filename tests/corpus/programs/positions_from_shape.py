import tensorflow as tf

table = tf.Variable(tf.random.normal([20, 4]))


def positions_of(ids):
    length = tf.shape(ids)[1]
    positions = tf.range(length)
    return tf.tile(positions[tf.newaxis], [tf.shape(ids)[0], 1])


@tf.function
def step(ids):
    with tf.GradientTape() as tape:
        states = tf.one_hot(ids, 20) + tf.one_hot(positions_of(ids), 20)
        loss = tf.reduce_mean(tf.matmul(states, table) ** 2)
        loss += tf.reduce_sum(tf.zeros([tf.shape(ids)[0]]))
    table.assign_sub(0.1 * tape.gradient(loss, table))
    return loss


def train():
    for _ in range(2):
        step(tf.random.uniform([4, 6], 0, 20, tf.int32))
