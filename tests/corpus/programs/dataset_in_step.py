import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))
examples = tf.data.Dataset.from_tensor_slices(tf.random.normal([8, 5])).batch(4, True)


@tf.function(jit_compile=True)
def epoch(data):
    total = 0.0
    for x in data:
        total += tf.reduce_mean((x @ weights) ** 2)
    return total


def train():
    epoch(examples)
