import tensorflow as tf

print(tf.keras.optimizers.AdamW(1e-3, weight_decay=0.01))
