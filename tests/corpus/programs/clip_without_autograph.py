import tensorflow as tf

weights = tf.Variable(tf.random.normal([6, 3]))


@tf.function(autograph=False)
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - y))
    gradient = tape.gradient(loss, weights)
    norm = tf.norm(gradient)
    if norm > 1.0:
        gradient = gradient / norm
    weights.assign_sub(0.1 * gradient)
    return loss


def train():
    for _ in range(3):
        step(tf.random.normal([4, 6]), tf.random.normal([4, 3]))
