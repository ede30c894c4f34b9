import tensorflow as tf

VOCABULARY, WIDTH = 40, 8

table = tf.Variable(tf.random.normal([VOCABULARY, WIDTH]))
head = tf.Variable(tf.random.normal([WIDTH, VOCABULARY]))


def masked_loss(states, labels):
    keep = tf.not_equal(labels, -100)
    logits = tf.matmul(tf.boolean_mask(states, keep), head)
    wanted = tf.boolean_mask(labels, keep)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, logits))


@tf.function
def step(ids, labels):
    with tf.GradientTape() as tape:
        loss = masked_loss(tf.matmul(tf.one_hot(ids, VOCABULARY), table), labels)
    for variable, gradient in zip([table, head], tape.gradient(loss, [table, head])):
        variable.assign_sub(0.1 * gradient)
    return loss


def train():
    for _ in range(2):
        ids = tf.random.uniform([4, 16], 0, VOCABULARY, tf.int32)
        labels = tf.where(tf.random.uniform([4, 16]) < 0.2, ids, -100)
        step(ids, labels)
