import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 1]))


def checked(x):
    tf.debugging.assert_all_finite(x, "features")
    tf.Assert(tf.reduce_max(x) < 100.0, [x])
    return x


@tf.function
def step(x):
    assert x.shape[0] == 4
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    data = tf.data.Dataset.from_tensor_slices(tf.random.normal([8, 5])).map(checked)
    for x in data.batch(4, drop_remainder=True):
        step(x)
