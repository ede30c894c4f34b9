import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)

with strategy.scope():
    weight = tf.Variable(tf.zeros([64, 10]))


@tf.function(jit_compile=True)
def step(x):
    return tf.reduce_sum(tf.matmul(x, weight))


print(strategy.run(step, args=(tf.ones([8, 64]),)))
