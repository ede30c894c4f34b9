import tensorflow as tf

EXPERTS = 2
experts = [tf.Variable(tf.random.normal([5, 5])) for _ in range(EXPERTS)]


@tf.function
def step(x, gates):
    dispatch = tf.one_hot(tf.argmax(gates, axis=1), EXPERTS)
    with tf.GradientTape() as tape:
        loss = 0.0
        for index, expert in enumerate(experts):
            loss += tf.reduce_sum((x @ expert) ** 2 * dispatch[:, index, tf.newaxis])
    for expert, gradient in zip(experts, tape.gradient(loss, experts)):
        expert.assign_sub(0.01 * gradient)
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([8, 5]), tf.random.normal([8, EXPERTS]))
