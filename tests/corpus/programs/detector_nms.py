import tensorflow as tf


@tf.function
def detect(boxes, scores):
    confident = scores > 0.3
    boxes = tf.boolean_mask(boxes, confident)
    scores = tf.boolean_mask(scores, confident)
    best = tf.argmax(scores)
    return tf.gather(boxes, best), tf.reduce_sum(scores)


def train():
    for _ in range(2):
        corners = tf.random.uniform([20, 2], 0, 0.5)
        boxes = tf.concat([corners, corners + 0.3], axis=1)
        detect(boxes, tf.random.uniform([20]))
