import tensorflow as tf

config = tf.compat.v1.estimator.tpu.RunConfig(model_dir="gs://my-bucket/model")
print(config)
