import keras
import numpy as np
import tensorflow as tf

images = np.random.rand(10, 8, 8, 1).astype("float32")
labels = np.random.randint(0, 10, 10)

model = keras.Sequential(
    [
        keras.layers.Input((8, 8, 1)),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def train():
    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(10).batch(4)
    model.fit(data, epochs=1)
