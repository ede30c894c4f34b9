import tensorflow as tf

tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
print(tf.keras.layers.Dense(3).compute_dtype)
