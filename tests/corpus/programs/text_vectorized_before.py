import keras
import tensorflow as tf

texts = ["one two three", "four five", "six", "seven eight nine"]
vectorize = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=4)
vectorize.adapt(texts)

model = keras.Sequential(
    [keras.layers.Embedding(20, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
)
model.compile("adam", "mse")


def dataset():
    data = tf.data.Dataset.from_tensor_slices((texts, [0.0, 1.0, 0.0, 1.0])).repeat(3)
    data = data.batch(2, drop_remainder=True)
    return data.map(lambda text, label: (vectorize(text), label))


def train():
    model.fit(dataset(), epochs=1)
