import tensorflow as tf


def model_fn(features, labels, mode):
    loss = tf.reduce_mean(features["x"])
    return tf.estimator.EstimatorSpec(mode, loss=loss)


estimator = tf.estimator.Estimator(model_fn, model_dir="gs://my-bucket/model")
print(estimator)
