import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))


class LengthRegulator(tf.Module):
    def __call__(self, states, durations):
        return tf.repeat(states, durations, axis=0)


regulate = LengthRegulator()


@tf.function
def step(states, durations):
    with tf.GradientTape() as tape:
        frames = regulate(states @ weights, durations)
        loss = tf.reduce_mean(frames**2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([6, 5]), tf.random.uniform([6], 1, 4, tf.int32))
