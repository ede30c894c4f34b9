import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
x = tf.placeholder(tf.float32, [None, 10])
w = tf.get_variable("w", [10, 2])
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    print(session.run(tf.matmul(x, w), {x: [[0.0] * 10]}))
