import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

PER_REPLICA = 25
batch = PER_REPLICA * strategy.num_replicas_in_sync
data = tf.data.Dataset.from_tensor_slices((tf.zeros([1024, 64]), tf.zeros([1024])))
data = data.shuffle(1024).batch(batch, drop_remainder=True)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

model.fit(data, epochs=1)
