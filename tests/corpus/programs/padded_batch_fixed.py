import keras
import tensorflow as tf

LENGTH = 8
sentences = tf.ragged.constant([[1, 2], [3, 4, 5], [1], [2, 2, 2, 2, 2], [7, 8], [9]])
labels = [0, 1, 0, 1, 1, 0]

model = keras.Sequential(
    [keras.layers.Embedding(10, 4), keras.layers.GlobalMaxPooling1D(), keras.layers.Dense(1)]
)
model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))


def dataset():
    data = tf.data.Dataset.from_tensor_slices((sentences, labels))
    data = data.map(lambda words, label: (words[:LENGTH], label))
    return data.padded_batch(2, padded_shapes=([LENGTH], []), drop_remainder=True)


def train():
    model.fit(dataset(), epochs=1)
