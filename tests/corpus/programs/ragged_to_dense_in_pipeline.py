import tensorflow as tf

table = tf.Variable(tf.random.normal([10, 4]))


def batches():
    rows = tf.ragged.constant([[1, 2], [3, 4, 5], [1], [2, 2, 2, 2, 2]])
    data = tf.data.Dataset.from_tensor_slices(rows).batch(2, drop_remainder=True)
    return data.map(lambda batch: batch.to_tensor(shape=[2, 6]))


@tf.function
def step(ids):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(tf.one_hot(ids, 10), table) ** 2)
    table.assign_sub(0.1 * tape.gradient(loss, table))
    return loss


def train():
    for ids in batches():
        step(ids)
