import keras
import numpy as np

model = keras.Sequential(
    [
        keras.layers.Input((7,), dtype="int32"),
        keras.layers.Embedding(20, 8, mask_zero=True),
        keras.layers.LSTM(8, return_sequences=True),
        keras.layers.Dense(20),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))


def train():
    tokens = np.random.randint(1, 20, (8, 8))
    model.fit(tokens[:, :-1], tokens[:, 1:], batch_size=4)
