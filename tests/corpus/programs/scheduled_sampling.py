import tensorflow as tf

kernel = tf.Variable(tf.random.normal([6, 6]) * 0.1)
probability = tf.Variable(0.5, trainable=False)


@tf.function
def step(targets):
    with tf.GradientTape() as tape:
        previous = targets[:, 0]
        loss = tf.constant(0.0)
        for t in range(1, targets.shape[1]):
            predicted = tf.tanh(previous @ kernel)
            loss += tf.reduce_mean((predicted - targets[:, t]) ** 2)
            if tf.random.uniform([]) < probability:
                previous = predicted
            else:
                previous = targets[:, t]
    kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
    probability.assign(tf.minimum(probability * 1.1, 0.9))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([4, 5, 6]))
