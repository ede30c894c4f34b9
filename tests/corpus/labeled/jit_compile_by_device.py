import tensorflow as tf

tpus = tf.config.list_logical_devices("TPU")
if tpus:
    strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver.connect("local"))
else:
    strategy = tf.distribute.MirroredStrategy()

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=not tpus)
