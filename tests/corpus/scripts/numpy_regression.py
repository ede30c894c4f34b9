"""Logistic regression with nothing but NumPy, boolean masks and where included."""

import argparse

import numpy as np


def sigmoid(z):
    result = np.empty_like(z)
    positive = z >= 0
    result[positive] = 1 / (1 + np.exp(-z[positive]))
    grown = np.exp(z[~positive])
    result[~positive] = grown / (1 + grown)
    return result


def clean(x, y):
    """Without rows that miss a value, or lie far out."""
    there = ~np.isnan(x).any(axis=1)
    x, y = x[there], y[there]
    scores = np.abs((x - x.mean(0)) / x.std(0)).max(axis=1)
    far = np.where(scores > 4)[0]
    if far.size:
        print("left out:", far.tolist())
    return np.delete(x, far, axis=0), np.delete(y, far)


def batches(x, y, size, rng):
    order = rng.permutation(len(x))
    for start in range(0, len(x), size):
        chosen = order[start : start + size]
        yield x[chosen], y[chosen]


class LogisticRegression:
    def __init__(self, features, rate=0.1, decay=1e-3):
        self.weights = np.zeros(features)
        self.bias = 0.0
        self.rate, self.decay = rate, decay

    def predict(self, x):
        return sigmoid(x @ self.weights + self.bias)

    def step(self, x, y):
        error = self.predict(x) - y
        self.weights -= self.rate * (x.T @ error / len(x) + self.decay * self.weights)
        self.bias -= self.rate * error.mean()
        guess = np.clip(self.predict(x), 1e-7, 1 - 1e-7)
        return -(y * np.log(guess) + (1 - y) * np.log(1 - guess)).mean()


def confusion(truth, guess):
    kinds, inverse = np.unique(truth, return_inverse=True)
    table = np.zeros((len(kinds), 2), int)
    np.add.at(table, (inverse, guess.astype(int)), 1)
    return table


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=37)
    parser.add_argument("--data", help="a .csv whose last column is the label")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    if args.data:
        table = np.genfromtxt(args.data, delimiter=",", skip_header=1)
        x, y = table[:, :-1], table[:, -1]
    else:
        x = rng.normal(size=(500, 5))
        y = (x @ np.array([1, -2, 0.5, 0, 3]) + rng.normal(0, 0.5, 500) > 0).astype(float)
        x[rng.random(x.shape) < 0.002] = np.nan
    x, y = clean(x, y)

    model = LogisticRegression(x.shape[1])
    step, before = 0, np.inf
    while step < args.steps:
        for features, labels in batches(x, y, args.batch, rng):
            loss = model.step(features, labels)
            step += 1
            if step == args.steps:
                break
        if abs(before - loss) < 1e-9:
            break
        before = loss
    guess = model.predict(x) > 0.5
    print("loss", round(float(loss), 4), "accuracy", (guess == y).mean())
    print(confusion(y, guess))
    np.savez("/tmp/weights.npz", weights=model.weights, bias=model.bias)


if __name__ == "__main__":
    main()
