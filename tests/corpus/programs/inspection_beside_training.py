import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))


def report(predictions, labels):
    wrong = tf.where(tf.argmax(predictions, axis=1, output_type=tf.int32) != labels)
    classes, _, counts = tf.unique_with_counts(tf.gather(labels, wrong[:, 0]))
    for name, count in zip(classes.numpy(), counts.numpy()):
        print(f"{name}: {int(count)} wrong")
    if tf.size(wrong) == 0:
        print("none wrong")
    return predictions[labels == 1].numpy()


@tf.function
def step(x, labels):
    with tf.GradientTape() as tape:
        logits = x @ weights
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return logits


def train():
    for _ in range(2):
        labels = tf.random.uniform([6], 0, 2, tf.int32)
        report(step(tf.random.normal([6, 5]), labels), labels)
