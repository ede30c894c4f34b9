import tensorflow as tf

weights = tf.Variable(tf.random.normal([10, 2]))


class Model(tf.Module):
    def __call__(self, ids, mask):
        with tf.control_dependencies([tf.debugging.assert_less(ids, 10)]):
            states = tf.matmul(tf.one_hot(ids, 10), weights)
        return tf.reduce_sum(states * tf.cast(mask, tf.float32)[..., None])


model = Model()


@tf.function
def step(ids, mask):
    return model(ids, mask)


def train():
    for _ in range(2):
        step(tf.random.uniform([4, 6], 0, 10, tf.int32), tf.ones([4, 6], tf.bool))
