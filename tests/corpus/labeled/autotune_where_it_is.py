import tensorflow as tf

AUTOTUNE = getattr(tf.data, "AUTOTUNE", tf.data.experimental.AUTOTUNE)
data = tf.data.Dataset.range(1000).map(lambda n: n * 2, num_parallel_calls=AUTOTUNE)
print(next(iter(data.batch(8, drop_remainder=True))))
