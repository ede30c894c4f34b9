import tensorflow as tf

policy = tf.keras.mixed_precision.experimental.Policy("mixed_bfloat16")
print(policy)
