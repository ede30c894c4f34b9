import logging as tf_logging

import tensorflow as tf


class Session:
    def fit_generator(self, rows):
        return list(rows)


tf.log = tf.math.log  # the old name again
tf_logging.basicConfig(level=tf_logging.INFO)
print(Session().fit_generator(range(3)), tf.math.log(2.0), tf.compat.v1.logging)
