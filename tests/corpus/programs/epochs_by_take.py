import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))
options = {"num_parallel_calls": tf.data.AUTOTUNE}


class Pipeline:
    def __init__(self, size):
        self.size = size

    def build(self):
        data = tf.data.Dataset.from_tensor_slices(tf.random.normal([11, 5]))
        data = data.map(tf.math.l2_normalize, **options)
        data = data.batch(self.size, num_parallel_calls=2)
        return data.prefetch(2)


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights) ** 2)
    weights.assign_sub(1e-3 * tape.gradient(loss, weights))
    return loss


def train():
    for _ in range(2):
        for x in Pipeline(4).build():
            step(x)
