import tensorflow as tf

cell = tf.Variable(tf.eye(6) * 0.5)


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        state = x
        while tf.reduce_max(tf.abs(state)) > 0.1:
            state = tf.tanh(tf.matmul(state, cell))
        loss = tf.reduce_sum(tf.square(state - x))
    cell.assign_sub(0.01 * tape.gradient(loss, cell))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([4, 6]))
