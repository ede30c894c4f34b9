import tensorflow as tf

try:
    AdamW = tf.keras.optimizers.AdamW
except AttributeError:
    from tensorflow_addons.optimizers import AdamW
print(AdamW(learning_rate=1e-3, weight_decay=0.01))
