import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    data = tf.data.Dataset.from_tensor_slices(tf.random.normal([10, 5]))
    data = data.repeat().shuffle(10).batch(4)
    for x in data.take(5):
        step(x)
