import tensorflow as tf

print(tf.contrib.layers.xavier_initializer())
