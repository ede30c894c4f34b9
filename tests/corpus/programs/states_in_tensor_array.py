import tensorflow as tf

LENGTH = 5
kernel = tf.Variable(tf.random.normal([6, 6]) * 0.1)


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        state = tf.zeros([4, 6])
        states = tf.TensorArray(tf.float32, size=LENGTH, element_shape=[4, 6])
        for t in tf.range(LENGTH):
            state = tf.tanh(state @ kernel + x[:, t])
            states = states.write(t, state)
        loss = tf.reduce_mean(states.stack() ** 2)
    kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([4, LENGTH, 6]))
