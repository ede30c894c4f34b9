"""Tabular classifier, plain JAX, single v5e chip."""
import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np


def make_dataset(n=1000, dim=32, classes=10, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim)).astype(np.float32)
    w = rng.normal(size=(dim, classes))
    y = np.argmax(x @ w, axis=-1).astype(np.int32)
    return x, y


def init_params(key, sizes):
    params = []
    for din, dout in zip(sizes[:-1], sizes[1:]):
        key, sub = jax.random.split(key)
        params.append({
            "w": jax.random.normal(sub, (din, dout)) * np.sqrt(2.0 / din),
            "b": jnp.zeros((dout,)),
        })
    return params


def forward(params, x, key, rate=0.1):
    for layer in params[:-1]:
        key, sub = jax.random.split(key)
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
        keep = jax.random.bernoulli(sub, 1.0 - rate, x.shape)
        x = jnp.where(keep, x / (1.0 - rate), 0.0)
    return x @ params[-1]["w"] + params[-1]["b"]


def loss_fn(params, x, y, key):
    logp = jax.nn.log_softmax(forward(params, x, key))
    return -jnp.mean(jnp.take_along_axis(logp, y[:, None], axis=1))


@jax.jit
def sgd(params, grads, lr):
    return jax.tree_util.tree_map(lambda p, g: p - lr * g, params, grads)


def batches(x, y, batch_size, seed):
    order = np.random.default_rng(seed).permutation(len(x))
    for start in range(0, len(x), batch_size):
        idx = order[start:start + batch_size]
        yield x[idx], y[idx]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch_size", type=int, default=128)
    ap.add_argument("--lr", type=float, default=0.1)
    args = ap.parse_args()

    x, y = make_dataset()
    key = jax.random.PRNGKey(0)
    key, init_key, drop_key = jax.random.split(key, 3)
    params = init_params(init_key, [x.shape[1], 256, 256, 10])

    running, step = 0.0, 0
    t0 = time.time()
    for epoch in range(args.epochs):
        for bx, by in batches(x, y, args.batch_size, epoch):
            value_and_grad = jax.jit(lambda p, a, b, k: jax.value_and_grad(loss_fn)(p, a, b, k))
            loss, grads = value_and_grad(params, bx, by, drop_key)
            params = sgd(params, grads, args.lr)
            running = 0.9 * running + 0.1 * float(loss)
            step += 1
        print(f"epoch {epoch} step {step} loss {running:.4f} ({time.time() - t0:.1f}s)")


if __name__ == "__main__":
    main()
