import tensorflow as tf

features = tf.Variable(tf.random.normal([10, 4]))


class Convolution(tf.keras.layers.Layer):
    def call(self, inputs):
        nodes, adjacency = inputs
        edges = tf.where(adjacency > 0.5)
        messages = tf.gather(nodes, edges[:, 1])
        return tf.math.unsorted_segment_sum(messages, edges[:, 0], num_segments=10)


layer = Convolution()


@tf.function
def step(adjacency):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(layer((features, adjacency)) ** 2)
    features.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, features)))
    return loss


def train():
    for _ in range(2):
        step(tf.random.uniform([10, 10]))
