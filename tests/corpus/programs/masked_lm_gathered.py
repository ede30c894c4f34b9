import tensorflow as tf

VOCABULARY, WIDTH = 40, 8

table = tf.Variable(tf.random.normal([VOCABULARY, WIDTH]))
optimizer = tf.keras.optimizers.SGD(0.1)


def masked_loss(states, positions, ids, weights):
    picked = tf.gather(states, positions, batch_dims=1)
    logits = tf.einsum("bpw,vw->bpv", picked, table)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(ids, logits)
    return tf.reduce_sum(losses * weights) / (tf.reduce_sum(weights) + 1e-5)


@tf.function
def step(ids, positions, labels, weights):
    with tf.GradientTape() as tape:
        states = tf.tanh(tf.gather(table, ids))
        loss = masked_loss(states, positions, labels, weights)
    gradients = [tf.convert_to_tensor(one) for one in tape.gradient(loss, [table])]
    optimizer.apply_gradients(zip(gradients, [table]))
    return loss


def batches():
    for _ in range(3):
        ids = tf.random.uniform([4, 16], 0, VOCABULARY, tf.int32)
        positions = tf.random.uniform([4, 3], 0, 16, tf.int32)
        labels = tf.gather(ids, positions, batch_dims=1)
        yield ids, positions, labels, tf.ones([4, 3])


def train():
    for batch in batches():
        print("loss", float(step(*batch)))
