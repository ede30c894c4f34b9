import os

import tensorflow as tf


def make_strategy():
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ.get("TPU_NAME"))
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


strategy = make_strategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((5,)), tf.keras.layers.Dense(2)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)


@tf.function
def train_step(iterator):
    def replica(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return strategy.run(replica, args=(next(iterator),))


def train():
    data = tf.data.Dataset.from_tensors((tf.ones([4, 5]), tf.ones([4, 2]))).repeat()
    iterator = iter(strategy.experimental_distribute_dataset(data))
    for number in range(4):
        loss = train_step(iterator)
        if number % 2 == 0:
            print(number, loss.numpy())
