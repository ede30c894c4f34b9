import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))


@tf.function
def step(x, y, use_l1=False):
    with tf.GradientTape() as tape:
        error = tf.reduce_mean(tf.abs(x @ weights - y))
        loss = error if use_l1 else error**2
        loss = loss * 0.5 if loss > 1.0 else loss
        if not tf.math.is_nan(loss) and loss >= 0.0:
            loss = loss + 1e-3
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([4, 5]), tf.random.normal([4, 2]))
