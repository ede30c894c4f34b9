import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))
schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([2, 4], [0.1, 0.05, 0.01])


@tf.function
def step(x, rate, training=True):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights) ** 2)
        if training:
            loss += tf.nn.l2_loss(weights)
    weights.assign_sub(rate * tape.gradient(loss, weights))
    return loss


def train():
    for number in range(4):
        step(tf.random.normal([4, 5]), schedule(number), training=True)
        step(tf.random.normal([4, 5]), tf.convert_to_tensor(0.1 / (number + 1)), training=True)
