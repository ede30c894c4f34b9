import tensorflow as tf

EXPERTS = 2
experts = [tf.Variable(tf.random.normal([5, 5])) for _ in range(EXPERTS)]


@tf.function
def step(x, gates):
    chosen = tf.argmax(gates, axis=1, output_type=tf.int32)
    with tf.GradientTape() as tape:
        parts = tf.dynamic_partition(x, chosen, EXPERTS)
        loss = 0.0
        for part, expert in zip(parts, experts):
            loss += tf.reduce_sum((part @ expert) ** 2)
    for expert, gradient in zip(experts, tape.gradient(loss, experts)):
        expert.assign_sub(0.01 * gradient)
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([8, 5]), tf.random.normal([8, EXPERTS]))
