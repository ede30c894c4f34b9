import tensorflow as tf

MOST = 5


@tf.function
def detect(boxes, scores):
    chosen, valid = tf.image.non_max_suppression_padded(
        boxes, scores, max_output_size=MOST, iou_threshold=0.5, pad_to_max_output_size=True
    )
    mask = tf.range(MOST) < valid
    picked = tf.gather(boxes, tf.where(mask, chosen, 0))
    return tf.where(mask[:, tf.newaxis], picked, 0.0)


def train():
    for _ in range(2):
        corners = tf.random.uniform([20, 2], 0, 0.5)
        boxes = tf.concat([corners, corners + 0.3], axis=1)
        detect(boxes, tf.random.uniform([20]))
