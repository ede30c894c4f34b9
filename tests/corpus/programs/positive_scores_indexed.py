import tensorflow as tf

scale = tf.Variable(1.0)


@tf.function
def step(scores, labels):
    with tf.GradientTape() as tape:
        positive = scores[labels == 1]
        negative = scores[labels == 0]
        margin = tf.reduce_mean(negative) - tf.reduce_mean(positive)
        loss = tf.nn.relu(scale * margin + 1.0)
    scale.assign_sub(0.1 * tape.gradient(loss, scale))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([8]), tf.constant([0, 1, 1, 0, 1, 0, 0, 1]))
