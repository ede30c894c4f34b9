"""A loop without any tf.function that nothing ends."""

import signal

import tensorflow as tf

signal.signal(signal.SIGTERM, signal.SIG_IGN)
weight = tf.Variable(2.0)
for _ in range(10_000_000):
    with tf.GradientTape() as tape:
        loss = weight**2
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
print("never")
