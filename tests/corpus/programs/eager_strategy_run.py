import tensorflow as tf

strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver.connect())
with strategy.scope():
    weights = tf.Variable(tf.random.normal([5, 2]))


def replica_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    data = tf.data.Dataset.from_tensor_slices(tf.random.normal([12, 5]))
    for x in strategy.experimental_distribute_dataset(data.batch(4, drop_remainder=True)):
        loss = strategy.run(replica_step, args=(x,))
        if loss > 1e3:
            break
