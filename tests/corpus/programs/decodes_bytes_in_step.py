import tensorflow as tf

weights = tf.Variable(tf.random.normal([4, 1]))


def decode(raw):
    pixels = tf.io.decode_raw(raw, tf.uint8)
    return tf.cast(pixels, tf.float32) / 255.0


@tf.function
def step(raw):
    x = tf.ensure_shape(decode(raw), [3, 4])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weights))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    for _ in range(2):
        step(tf.constant([b"abcd", b"efgh", b"ijkl"]))
