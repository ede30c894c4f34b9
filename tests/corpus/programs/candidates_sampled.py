import tensorflow as tf

table = tf.Variable(tf.random.normal([50, 8]))
biases = tf.Variable(tf.zeros([50]))


@tf.function
def step(states, targets):
    with tf.GradientTape() as tape:
        losses = tf.nn.sampled_softmax_loss(
            weights=table,
            biases=biases,
            labels=targets,
            inputs=states,
            num_sampled=5,
            num_classes=50,
        )
        loss = tf.reduce_mean(losses)
    for variable, gradient in zip([table, biases], tape.gradient(loss, [table, biases])):
        variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([4, 8]), tf.random.uniform([4, 1], 0, 50, tf.int64))
