import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

model = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(10)])
with strategy.scope():
    optimizer = tf.keras.optimizers.SGD(0.1)


@tf.function
def step(x, y):
    def replica(x, y):
        with tf.GradientTape() as tape:
            losses = tf.keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=128)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    strategy.run(replica, args=(x, y))


data = tf.data.Dataset.from_tensor_slices((tf.zeros([256, 64]), tf.zeros([256]))).batch(128, drop_remainder=True)
for x, y in strategy.experimental_distribute_dataset(data):
    step(x, y)
