import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.experimental.preprocessing.Rescaling(1 / 255.0), tf.keras.layers.Dense(10)])
model.compile(tf.keras.optimizers.legacy.Adam(), "mse")
model.fit_generator(iter([(np.zeros([8, 4]), np.zeros([8, 10]))]), steps_per_epoch=1)
