import os

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = getattr(tf.distribute, "TPUStrategy", tf.distribute.experimental.TPUStrategy)(resolver)

with strategy.scope():
    total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)


@tf.function
def step(x):
    strategy.run(lambda x: total.assign_add(tf.reduce_sum(x)), args=(x,))


step(tf.ones([8]))
