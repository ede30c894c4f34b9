import tensorflow as tf
from tensorflow.keras import layers

augmentation = tf.keras.Sequential([layers.RandomFlip("horizontal")])
print(augmentation)
