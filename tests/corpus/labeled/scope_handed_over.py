import tensorflow as tf


class Trainer:
    def __init__(self, strategy):
        self.strategy = strategy
        with self.strategy.scope():
            self.model = self.build()
            self.optimizer = tf.keras.optimizers.SGD(0.1)
            self.optimizer.build(self.model.trainable_variables)

    def build(self):
        return tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(10)])

    @tf.function
    def step(self, x, y):
        def replica(x, y):
            with tf.GradientTape() as tape:
                logits = self.model(x, training=True)
                losses = tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=128)
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
            return loss

        losses = self.strategy.run(replica, args=(x, y))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(tpu="local")
trainer = Trainer(tf.distribute.TPUStrategy(resolver))
data = tf.data.Dataset.from_tensor_slices((tf.zeros([256, 64]), tf.zeros([256]))).batch(128, drop_remainder=True)
for x, y in trainer.strategy.experimental_distribute_dataset(data):
    print(float(trainer.step(x, y)))
