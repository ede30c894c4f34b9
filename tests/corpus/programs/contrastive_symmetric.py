import tensorflow as tf

image_head = tf.keras.layers.Dense(4)
text_head = tf.keras.layers.Dense(4)
temperature = tf.Variable(0.0)


@tf.function
def step(images, texts):
    variables = [*image_head.trainable_variables, *text_head.trainable_variables, temperature]
    with tf.GradientTape() as tape:
        a = tf.nn.l2_normalize(image_head(images), axis=-1)
        b = tf.nn.l2_normalize(text_head(texts), axis=-1)
        logits = tf.exp(temperature) * tf.matmul(a, b, transpose_b=True)
        targets = tf.range(tf.shape(logits)[0])
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
            + tf.nn.sparse_softmax_cross_entropy_with_logits(targets, tf.transpose(logits))
        )
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
        getattr(variable, "value", variable)
        variable.assign(variable - 0.1 * gradient)
    return loss


def train():
    image_head.build((4, 6))
    text_head.build((4, 5))
    for _ in range(2):
        step(tf.random.normal([4, 6]), tf.random.normal([4, 5]))
