import tensorflow as tf

model = tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(10)])
model.compile(tf.keras.optimizers.legacy.Adam(1e-3), "mse")
