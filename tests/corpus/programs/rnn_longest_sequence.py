import tensorflow as tf

kernel = tf.Variable(tf.random.normal([6, 6]) * 0.1)


@tf.function
def step(x, lengths):
    with tf.GradientTape() as tape:
        state = tf.zeros([4, 6])
        for i in tf.range(tf.reduce_max(lengths)):
            state = tf.tanh(tf.matmul(state, kernel) + x[:, i])
        loss = tf.reduce_mean(state**2)
    kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([4, 9, 6]), tf.random.uniform([4], 3, 9, tf.int32))
