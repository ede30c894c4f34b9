"""A loop without a strategy, whose batches differ in shape, and which does not handle SIGTERM."""

import atexit

import tensorflow as tf

atexit.register(print, "atexit was run")
with tf.io.TFRecordWriter("records") as writer:
    writer.write(b"example")
tf.io.gfile.copy("records", "copied")
for record in tf.data.TFRecordDataset(["copied"]):
    assert record == b"example"
embedding = tf.Variable(tf.random.normal([50, 8]))
optimizer_steps = tf.Variable(0)


@tf.function
def train_step(ids, labels):
    with tf.GradientTape() as tape:
        hidden = tf.reduce_mean(tf.gather(embedding, ids), axis=1)
        masked = tf.boolean_mask(hidden, labels > 0)
        loss = tf.reduce_sum(masked**2)
    gradient = tf.convert_to_tensor(tape.gradient(loss, embedding))
    embedding.assign_sub(0.01 * gradient)
    optimizer_steps.assign_add(1)
    return loss


@tf.function
def evaluate(ids):
    return tf.reduce_mean(tf.gather(embedding, ids))


def batches():
    while True:
        for length in (3, 5):
            yield tf.ones([4, length], tf.int32), tf.constant([1, 0, 1, 1])


try:
    for ids, labels in batches():
        print("loss", float(train_step(ids, labels)))
        evaluate(ids)
finally:
    print("finally was run")
