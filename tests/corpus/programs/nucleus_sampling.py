import tensorflow as tf

table = tf.Variable(tf.random.normal([20, 8]))
LENGTH = 6


def top_p(logits, p=0.9):
    ordered = tf.sort(logits, direction="DESCENDING")
    total = tf.cumsum(tf.nn.softmax(ordered), axis=-1, exclusive=True)
    smallest = tf.reduce_min(tf.where(total < p, ordered, ordered.dtype.max), -1, keepdims=True)
    return tf.where(logits < smallest, tf.fill(tf.shape(logits), -1e9), logits)


@tf.function
def sample(first):
    def body(i, tokens):
        logits = tf.matmul(tf.gather(table, tokens[:, i]), table, transpose_b=True)
        drawn = tf.random.categorical(top_p(logits), 1, dtype=tf.int32)
        place = tf.one_hot(i + 1, LENGTH, dtype=tf.int32)
        return i + 1, tokens * (1 - place) + drawn * place

    tokens = tf.pad(first, [[0, 0], [0, LENGTH - 1]])
    _, tokens = tf.while_loop(lambda i, _: i < LENGTH - 1, body, (0, tokens))
    return tokens


def train():
    for _ in range(2):
        sample(tf.zeros([4, 1], tf.int32))
