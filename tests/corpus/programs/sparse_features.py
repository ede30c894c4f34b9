import tensorflow as tf

weights = tf.Variable(tf.random.normal([8, 2]))


@tf.function
def step(indices, values):
    features = tf.SparseTensor(indices, values, [4, 8])
    with tf.GradientTape() as tape:
        scores = tf.sparse.sparse_dense_matmul(features, weights)
        loss = tf.reduce_mean(scores**2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    indices = tf.constant([[0, 1], [1, 3], [2, 7]], tf.int64)
    for _ in range(2):
        step(indices, tf.random.normal([3]))
