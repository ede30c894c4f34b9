import tensorflow as tf

weights = tf.Variable(tf.random.normal([4, 1]))
vocabulary = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(
        tf.constant(["a", "b", "c"]), tf.constant([1, 2, 3], tf.int64)
    ),
    default_value=0,
)


def encode(text):
    return vocabulary.lookup(tf.strings.split(text, sep=" "))[:3]


@tf.function
def step(ids):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.einsum("btv,vo->bto", tf.one_hot(ids, 4), weights)))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


def train():
    data = tf.data.Dataset.from_tensor_slices(["a b c", "c b a", "a a a", "b b d"])
    data = data.map(encode).map(lambda ids: tf.ensure_shape(ids, [3]))
    for ids in data.batch(2, drop_remainder=True):
        step(ids)
