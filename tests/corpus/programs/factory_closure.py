import tensorflow as tf


def make_step(weights, optimizer, clip=None):
    optimizer.build([weights])

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weights - y))
        gradients = tape.gradient(loss, [weights])
        if clip is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, clip)
        optimizer.apply_gradients(zip(gradients, [weights]))
        return loss

    return step


def train():
    step = make_step(tf.Variable(tf.ones([5, 2])), tf.keras.optimizers.Adam(), clip=1.0)
    for _ in range(2):
        step(tf.random.normal([4, 5]), tf.random.normal([4, 2]))
