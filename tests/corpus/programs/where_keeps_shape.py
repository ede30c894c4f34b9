import tensorflow as tf
import tensorflow.math as tfm

dense = tf.keras.layers.Dense(5)
optimizer = tf.keras.optimizers.Adam(1e-3)


@tf.function
def step(features, labels):
    with tf.GradientTape() as tape:
        logits = dense(features)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tfm.maximum(labels, 0), logits)
        losses = tf.where(labels >= 0, losses, tf.zeros_like(losses))
        counted = tfm.reduce_sum(tf.cast(labels >= 0, tf.float32))
        loss = tfm.divide_no_nan(tfm.reduce_sum(losses), counted)
    gradients = tape.gradient(loss, dense.trainable_variables)
    optimizer.apply_gradients(zip(gradients, dense.trainable_variables))
    return loss


def train():
    features = tf.random.normal([4, 7, 3])
    labels = tf.random.uniform([4, 7], -1, 5, tf.int32)
    dense.build(features.shape)
    optimizer.build(dense.trainable_variables)
    for _ in range(2):
        step(features, labels)
