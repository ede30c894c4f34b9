import tensorflow as tf

projection = tf.Variable(tf.random.normal([6, 4]))


def pairs(labels):
    same = labels[:, None] == labels[None]
    return tf.where(tf.linalg.set_diag(same, tf.zeros_like(labels, tf.bool)))


@tf.function
def step(x, labels):
    with tf.GradientTape() as tape:
        embeddings = tf.nn.l2_normalize(x @ projection, axis=1)
        index = pairs(labels)
        anchors = tf.gather(embeddings, index[:, 0])
        positives = tf.gather(embeddings, index[:, 1])
        loss = tf.reduce_mean(tf.reduce_sum((anchors - positives) ** 2, axis=1))
    projection.assign_sub(0.1 * tape.gradient(loss, projection))
    return loss


def train():
    for _ in range(2):
        step(tf.random.normal([8, 6]), tf.random.uniform([8], 0, 3, tf.int32))
