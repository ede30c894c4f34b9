"""Keras 3 with PyTorch underneath: nothing of TensorFlow is traced here."""

import argparse
import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
from keras import layers


class Gate(layers.Layer):
    """Eager under PyTorch: a plain conditional on a value."""

    def __init__(self, limit=100.0):
        super().__init__()
        self.limit = limit
        self.dense = layers.Dense(16, activation="relu")

    def call(self, x):
        x = self.dense(x)
        if float(x.abs().max()) > self.limit:
            x = x * (self.limit / x.abs().max())
        return x


def build():
    inputs = keras.Input((8,))
    x = layers.Dense(16)(inputs)
    x = layers.BatchNormalization()(x)
    return keras.Model(inputs, layers.Dense(1)(x))


class Loop:
    def __init__(self, model, rate):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        self.loss = torch.nn.MSELoss()

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = self.loss(self.model(x, training=True)[:, 0], y)
        if not torch.isfinite(loss):
            raise FloatingPointError("the loss is lost")
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=50)
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(500, 8)), dtype=torch.float32)
    y = x[:, 0] * 2 - x[:, 1] + 0.1 * torch.randn(500)
    keep = y.abs() < 5
    x, y = x[keep], y[keep]
    data = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(data, batch_size=args.batch, shuffle=True)

    model = build()
    loop = Loop(model, rate=0.01)
    losses = []
    while len(losses) < args.steps:
        for features, labels in loader:
            losses.append(loop.step(features, labels))
            if len(losses) >= args.steps:
                break
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")

    gate = Gate()
    print("gate:", tuple(gate(x[:4]).shape))
    model.compile(optimizer="adam", loss="mse", jit_compile=False)
    model.fit(x.numpy(), y.numpy()[:, None], batch_size=args.batch, epochs=1, verbose=0)


if __name__ == "__main__":
    main()
