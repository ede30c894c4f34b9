import tensorflow as tf

BATCH = 4
strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver.connect())
with strategy.scope():
    weights = tf.Variable(tf.random.normal([5, 2]))


def prepare(data, training):
    if training:
        data = data.shuffle(100)
    return data.batch(BATCH).map(lambda x: x * 2.0).prefetch(tf.data.AUTOTUNE)


def replica_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


@tf.function
def step(x):
    return strategy.run(replica_step, args=(x,))


def train():
    data = prepare(tf.data.Dataset.from_tensor_slices(tf.random.normal([10, 5])), training=True)
    for x in strategy.experimental_distribute_dataset(data):
        step(x)
