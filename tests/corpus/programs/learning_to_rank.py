import tensorflow as tf

scorer = tf.Variable(tf.random.normal([5, 1]))


def pairwise_logistic(scores, relevance, valid):
    difference = scores[:, :, None] - scores[:, None, :]
    preferred = relevance[:, :, None] > relevance[:, None, :]
    both = tf.logical_and(valid[:, :, None], valid[:, None, :])
    weights = tf.cast(tf.logical_and(preferred, both), scores.dtype)
    losses = tf.nn.softplus(-difference) * weights
    return tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(weights))


def train_one(features, relevance, valid, *, rate):
    with tf.GradientTape() as tape:
        scores = tf.squeeze(tf.einsum("blf,fo->blo", features, scorer), -1)
        loss = pairwise_logistic(scores, relevance, valid)
    scorer.assign_sub(rate * tape.gradient(loss, scorer))
    return loss


def train():
    compiled = tf.function(train_one, jit_compile=None)
    for _ in range(2):
        lengths = tf.random.uniform([4], 2, 6, tf.int32)
        compiled(
            tf.random.normal([4, 6, 5]),
            tf.random.uniform([4, 6], 0, 3, tf.int32),
            tf.sequence_mask(lengths, 6),
            rate=0.1,
        )
