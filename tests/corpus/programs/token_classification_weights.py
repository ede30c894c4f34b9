import tensorflow as tf
import tf_keras


class TokenClassifier(tf_keras.Model):
    def __init__(self, labels):
        super().__init__()
        self.encoder = tf_keras.layers.Dense(8, activation="gelu")
        self.dropout = tf_keras.layers.Dropout(0.1)
        self.classifier = tf_keras.layers.Dense(labels)

    def call(self, inputs, training=False):
        states = self.dropout(self.encoder(inputs), training=training)
        return self.classifier(states)

    def compute_masked_loss(self, labels, logits):
        loss_fn = tf_keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=tf_keras.losses.Reduction.NONE
        )
        unmasked = loss_fn(tf.nn.relu(labels), logits)
        mask = tf.cast(labels != -100, dtype=unmasked.dtype)
        return tf.reduce_sum(unmasked * mask) / tf.reduce_sum(mask)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_masked_loss(y, self(x, training=True))
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        return {"loss": loss}


def train():
    model = TokenClassifier(5)
    model.compile(optimizer=tf_keras.optimizers.Adam(1e-3))
    x = tf.random.normal([8, 9, 6])
    y = tf.where(tf.random.uniform([8, 9]) < 0.3, -100, 2)
    model.fit(x, y, batch_size=4, epochs=1)
