import tensorflow as tf


def make_loss(threshold):
    def loss(errors):
        keep = errors > threshold
        return tf.reduce_mean(tf.boolean_mask(errors, keep))

    return loss


def make_step(weights, loss_fn):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(tf.square(x @ weights - y))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    return tf.function(step)


def train():
    step = make_step(tf.Variable(tf.ones([5, 2])), make_loss(0.5))
    for _ in range(2):
        step(tf.random.normal([4, 5]), tf.random.normal([4, 2]))
