import tensorflow as tf

table = tf.Variable(tf.random.normal([10, 4]))


@tf.function
def step(ids):
    words = tf.ragged.boolean_mask(ids, ids > 0)
    with tf.GradientTape() as tape:
        states = tf.gather(table, words.flat_values)
        loss = tf.reduce_mean(states**2)
    table.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, table)))
    return loss


def train():
    for _ in range(2):
        step(tf.random.uniform([4, 6], 0, 10, tf.int32))
