"""Trainer class with a learning-rate schedule kept on the object."""
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np


class Trainer:
    def __init__(self, dim=64, hidden=256, lr=0.1, clip=1.0, seed=0):
        self.lr = lr
        self.clip = clip
        k1, k2 = jax.random.split(jax.random.PRNGKey(seed))
        self.params = {
            "w1": jax.random.normal(k1, (dim, hidden)) * dim ** -0.5,
            "w2": jax.random.normal(k2, (hidden, 1)) * hidden ** -0.5,
        }
        self.history = []

    @staticmethod
    def loss(params, x, y):
        pred = jnp.tanh(x @ params["w1"]) @ params["w2"]
        return jnp.mean((pred[:, 0] - y) ** 2)

    @functools.partial(jax.jit, static_argnums=0)
    def step(self, params, x, y):
        loss, grads = jax.value_and_grad(self.loss)(params, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g ** 2) for g in jax.tree_util.tree_leaves(grads)))
        if norm > self.clip:
            grads = jax.tree_util.tree_map(lambda g: g * self.clip / norm, grads)
        new = jax.tree_util.tree_map(lambda p, g: p - self.lr * g, params, grads)
        return new, loss

    def decay(self, factor=0.5):
        self.lr *= factor

    def fit(self, data, steps, decay_every=50):
        for i in range(steps):
            x, y = next(data)
            self.params, loss = self.step(self.params, x, y)
            self.history.append(self.params)
            if (i + 1) % decay_every == 0:
                self.decay()
                print(f"step {i + 1} lr {self.lr:.4f} loss {float(loss):.4f}")

    def benchmark(self, data, n=20):
        x, y = next(data)
        self.step(self.params, x, y)
        t0 = time.perf_counter()
        params = self.params
        for _ in range(n):
            params, loss = self.step(params, x, y)
        elapsed = time.perf_counter() - t0
        print(f"throughput: {n * len(x) / elapsed:,.0f} examples/s")


def regression_stream(batch=128, dim=64, seed=0):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(dim,)).astype(np.float32)
    while True:
        x = rng.normal(size=(batch, dim)).astype(np.float32)
        yield x, np.sin(x @ w).astype(np.float32)


if __name__ == "__main__":
    stream = regression_stream()
    trainer = Trainer()
    trainer.fit(stream, steps=100)
    trainer.benchmark(stream)
    print(len(trainer.history), "snapshots kept for later averaging")
