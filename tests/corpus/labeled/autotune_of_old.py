import tensorflow as tf

data = tf.data.Dataset.range(1000).map(lambda n: n * 2, num_parallel_calls=tf.data.experimental.AUTOTUNE)
print(next(iter(data.batch(8, drop_remainder=True))))
