import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))


@tf.function
def step(x, y):
    tf.debugging.assert_non_negative(y, message="targets are counts")
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weights - y))
    gradient = tf.debugging.check_numerics(tape.gradient(loss, weights), "gradient")
    weights.assign_sub(0.1 * gradient)
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([4, 5]), tf.random.uniform([4, 2]))
