import tensorflow as tf

head = tf.keras.layers.Dense(5)


def compute_loss(labels, logits):
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    active = tf.reshape(labels, (-1,)) != -100
    reduced_logits = tf.boolean_mask(tf.reshape(logits, (-1, 5)), active)
    reduced_labels = tf.boolean_mask(tf.reshape(labels, (-1,)), active)
    return tf.reduce_mean(loss_fn(reduced_labels, reduced_logits))


@tf.function
def step(states, labels):
    with tf.GradientTape() as tape:
        loss = compute_loss(labels, head(states))
    for variable, gradient in zip(
        head.trainable_variables, tape.gradient(loss, head.trainable_variables)
    ):
        variable.assign_sub(0.1 * gradient)
    return loss


def train():
    head.build((4, 9, 6))
    for _ in range(2):
        labels = tf.random.uniform([4, 9], 0, 5, tf.int32)
        labels = tf.where(tf.random.uniform([4, 9]) < 0.3, -100, labels)
        step(tf.random.normal([4, 9, 6]), labels)
