import tensorflow as tf

weights = tf.Variable(tf.random.normal([4, 1]))
vocabulary = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(
        tf.constant([10, 20, 30], tf.int64), tf.constant([1, 2, 3], tf.int64)
    ),
    default_value=0,
)


@tf.function
def step(keys):
    ids = vocabulary.lookup(keys)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.one_hot(ids, 4) @ weights))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    for _ in range(2):
        step(tf.constant([10, 30, 50], tf.int64))
