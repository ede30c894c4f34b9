import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)


def pipeline(context):
    batch = context.get_per_replica_batch_size(20 * context.num_replicas_in_sync)
    data = tf.data.Dataset.from_tensor_slices((tf.zeros([1024, 64]), tf.zeros([1024])))
    return data.shard(context.num_input_pipelines, context.input_pipeline_id).batch(batch, drop_remainder=True)


with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])

data = strategy.distribute_datasets_from_function(pipeline)
model.fit(data, steps_per_epoch=6, epochs=1)
