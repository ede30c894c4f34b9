import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver("")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    table = tf.Variable(tf.random.normal([30, 8]))


def replica_step(ids):
    words, places = tf.unique(tf.reshape(ids, [-1]))
    with tf.GradientTape() as tape:
        states = tf.gather(tf.matmul(tf.one_hot(words, 30), table), places)
        loss = tf.reduce_mean(states**2)
    table.assign_sub(0.1 * tape.gradient(loss, table))
    return loss


@tf.function
def distributed_step(batch):
    losses = strategy.run(replica_step, args=(batch,))
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)


def train():
    ids = tf.random.uniform([8, 6], 0, 30, tf.int32)
    data = tf.data.Dataset.from_tensor_slices(ids).batch(4, drop_remainder=True)
    for batch in strategy.experimental_distribute_dataset(data):
        distributed_step(batch)
