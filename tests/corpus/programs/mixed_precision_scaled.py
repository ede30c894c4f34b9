import keras
import numpy as np

keras.mixed_precision.set_global_policy("mixed_float16")

model = keras.Sequential(
    [
        keras.layers.Input((5,)),
        keras.layers.Dense(8, activation="relu"),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(1, dtype="float32"),
    ]
)
model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")


def train():
    model.fit(np.random.rand(8, 5), np.random.rand(8, 1), batch_size=4)
