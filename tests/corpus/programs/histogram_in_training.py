import tensorflow as tf

weights = tf.Variable(tf.random.normal([5, 2]))
seen = tf.Variable(tf.zeros([4]), trainable=False)


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        outputs = x @ weights
        loss = tf.reduce_mean(outputs**2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    bins = tf.clip_by_value(tf.cast(outputs[:, 0] + 2.0, tf.int32), 0, 3)
    seen.assign_add(tf.reduce_sum(tf.one_hot(bins, 4), axis=0))
    largest = tf.math.top_k(tf.abs(outputs[:, 0]), k=2).values
    return {"loss": loss, "largest": largest, "shape": tf.shape(outputs)}


def train():
    for _ in range(2):
        logs = step(tf.random.normal([6, 5]))
        print({name: value.numpy() for name, value in logs.items()})
