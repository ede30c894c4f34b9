import tensorflow as tf

kernel = tf.Variable(tf.random.normal([6, 6]) * 0.1)


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        state = tf.zeros([4, 6])
        for i in tf.range(5):
            state = tf.tanh(tf.matmul(state, kernel) + x[:, i])
        loss = tf.reduce_mean(state**2)
    kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([4, 5, 6]))
