import tensorflow as tf

kernel = tf.Variable(tf.eye(6) * 0.5)


def refine(x):
    def condition(state, change):
        return change > 1e-3

    def body(state, change):
        following = tf.tanh(state @ kernel + x)
        return following, tf.reduce_max(tf.abs(following - state))

    state, _ = tf.while_loop(
        condition, body, (tf.zeros_like(x), tf.constant(1.0)), maximum_iterations=8
    )
    return state


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(refine(x) ** 2)
    kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([4, 6]))
