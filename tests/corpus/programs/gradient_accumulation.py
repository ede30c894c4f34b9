import tensorflow as tf

EVERY = 4

weights = tf.Variable(tf.random.normal([5, 2]))
total = tf.Variable(tf.zeros([5, 2]), trainable=False)
turn = tf.Variable(0, trainable=False)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weights - y))
    total.assign_add(tape.gradient(loss, weights))
    turn.assign_add(1)
    if turn % EVERY == 0:
        weights.assign_sub(0.1 * total / EVERY)
        total.assign(tf.zeros_like(total))
    return loss


def train():
    for _ in range(5):
        step(tf.random.normal([4, 5]), tf.random.normal([4, 2]))
