"""A classifier in JAX alone: pytrees, grad and jit, with everything that JAX allows."""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np


def initialise(key, sizes):
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (m, n)) * jnp.sqrt(2 / m), "b": jnp.zeros(n)}
        for k, m, n in zip(keys, sizes[:-1], sizes[1:])
    ]


def forward(parameters, x):
    for layer in parameters[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ parameters[-1]["w"] + parameters[-1]["b"]


def loss_of(parameters, x, y):
    logits = forward(parameters, x)
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)
    return -jnp.where(jnp.isfinite(picked), picked, 0.0).mean()


@functools.partial(jax.jit, static_argnames="rate")
def update(parameters, x, y, rate):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
    return jax.tree.map(lambda p, g: p - rate * g, parameters, gradients), loss


@jax.jit
def clipped(parameters, limit):
    norm = jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(parameters)))
    scale = jax.lax.cond(norm > limit, lambda: limit / norm, lambda: jnp.ones(()))
    return jax.tree.map(lambda leaf: leaf * scale, parameters)


def batches(x, y, size, rng):
    order = rng.permutation(len(x))
    for start in range(0, len(x) - size + 1, size):
        chosen = order[start : start + size]
        yield x[chosen], y[chosen]


def accuracy(parameters, x, y):
    guess = np.asarray(forward(parameters, x).argmax(axis=1))
    wrong = x[guess != y]
    if len(wrong) and wrong.sum() > 1e9:
        print("something is off")
    return (guess == y).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=30)
    parser.add_argument("--rate", type=float, default=0.1)
    args = parser.parse_args()
    print("devices:", jax.devices())

    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 2)) * 3
    y = rng.integers(0, 3, 600)
    x = (centres[y] + rng.normal(size=(600, 2))).astype("float32")
    parameters = initialise(jax.random.PRNGKey(0), [2, 32, 3])

    step, best = 0, float("inf")
    while step < args.steps:
        for features, labels in batches(x, y, args.batch, rng):
            parameters, loss = update(parameters, features, labels, args.rate)
            parameters = clipped(parameters, 50.0)
            step += 1
            if float(loss) < best:
                best = float(loss)
            if step >= args.steps:
                break
    kinds, counts = jnp.unique(jnp.array(y), return_counts=True)
    print("classes", kinds.tolist(), counts.tolist())
    print(f"loss {best:.3f}, accuracy {accuracy(parameters, x, y):.2f}")


if __name__ == "__main__":
    main()
