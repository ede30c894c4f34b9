import tensorflow as tf

GRAPHS = 3
weights = tf.Variable(tf.random.normal([5, 2]))


@tf.function
def step(nodes, graph_of):
    with tf.GradientTape() as tape:
        sums = tf.math.unsorted_segment_sum(nodes @ weights, graph_of, num_segments=GRAPHS)
        sizes = tf.math.unsorted_segment_sum(tf.ones_like(nodes[:, :1]), graph_of, GRAPHS)
        loss = tf.reduce_mean((sums / tf.maximum(sizes, 1.0)) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([6, 5]), tf.random.uniform([6], 0, GRAPHS, tf.int32))
