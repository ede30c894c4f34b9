import tensorflow as tf
from tensorflow.keras.layers.experimental import preprocessing

augmentation = tf.keras.Sequential([preprocessing.RandomFlip("horizontal")])
print(augmentation)
