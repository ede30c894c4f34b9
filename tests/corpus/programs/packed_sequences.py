import tensorflow as tf

strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver.connect())

with strategy.scope():
    table = tf.Variable(tf.random.normal([30, 8]))
    optimizer = tf.keras.optimizers.Adam(1e-3)
    optimizer.build([table])


def attention(states, segments):
    together = segments[:, :, None] == segments[:, None, :]
    real = segments[:, None, :] > 0
    scores = tf.matmul(states, states, transpose_b=True)
    scores = tf.where(tf.logical_and(together, real), scores, -1e9)
    return tf.matmul(tf.nn.softmax(scores), states)


def replica_step(ids, segments):
    with tf.GradientTape() as tape:
        states = attention(tf.matmul(tf.one_hot(ids, 30), table), segments)
        weights = tf.cast(segments > 0, tf.float32)[..., None]
        loss = tf.reduce_sum(states**2 * weights) / tf.reduce_sum(weights)
    optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    return loss


@tf.function
def train_steps(iterator, count):
    for _ in tf.range(count):
        ids, segments = next(iterator)
        strategy.run(replica_step, args=(ids, segments))


def train():
    ids = tf.random.uniform([16, 12], 0, 30, tf.int32)
    segments = tf.sort(tf.random.uniform([16, 12], 0, 4, tf.int32))
    data = tf.data.Dataset.from_tensor_slices((ids, segments))
    data = data.batch(4, drop_remainder=True).repeat()
    iterator = iter(strategy.experimental_distribute_dataset(data))
    train_steps(iterator, tf.constant(3))
