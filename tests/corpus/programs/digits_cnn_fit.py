import keras
import numpy as np
import tensorflow as tf

BATCH = 4

images = np.random.rand(20, 8, 8, 1).astype("float32")
labels = np.random.randint(0, 10, 20)

model = keras.Sequential(
    [
        keras.layers.Input((8, 8, 1)),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer="adam",
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)


def train():
    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(20)
    model.fit(data.batch(BATCH, drop_remainder=True).repeat(), steps_per_epoch=3, epochs=2)
