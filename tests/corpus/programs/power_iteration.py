import tensorflow as tf

kernel = tf.Variable(tf.random.normal([6, 6]))


def spectral_norm(matrix, tolerance=1e-2):
    vector = tf.ones([6, 1])
    change = tf.constant(1.0)
    turns = tf.constant(0)
    while change > tolerance and turns < 20:
        following = tf.math.l2_normalize(tf.matmul(matrix, vector))
        change = tf.norm(following - vector)
        vector = following
        turns += 1
    return tf.norm(tf.matmul(matrix, vector))


@tf.function
def step(x):
    norm = spectral_norm(tf.stop_gradient(tf.matmul(kernel, kernel, transpose_a=True)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(tf.matmul(x, kernel / norm)))
    kernel.assign_sub(0.01 * tape.gradient(loss, kernel))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([4, 6]))
