"""Deep-equilibrium style model solved by an iteration with a trained stop rule."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

DIM = 64
N = 4096
BATCH = 64
STEPS = 12

rng = np.random.default_rng(0)
DATA_X = jnp.asarray(rng.normal(size=(N, DIM)).astype(np.float32))
DATA_Y = jnp.tanh(DATA_X[:, ::-1])


def init(key):
    k1, k2 = jax.random.split(key)
    return {
        "inject": jax.random.normal(k1, (DIM, DIM)) * DIM ** -0.5,
        "cell": jax.random.normal(k2, (DIM, DIM)) * 0.3 * DIM ** -0.5,
    }


def solve(params, x, tol=1e-3, max_iter=30):
    z0 = jnp.zeros_like(x)

    def cond(carry):
        z, prev, i = carry
        return (jnp.max(jnp.abs(z - prev)) > tol) & (i < max_iter)

    def body(carry):
        z, _, i = carry
        return jnp.tanh(x @ params["inject"] + z @ params["cell"]), z, i + 1

    z, _, _ = lax.while_loop(cond, body, (z0, z0 + 1.0, 0))
    return z


def loss_fn(params, idx):
    x, y = DATA_X[idx], DATA_Y[idx]
    return jnp.mean((solve(params, x) - y) ** 2)


@functools.partial(jax.jit, static_argnames=("step",))
def train_step(params, idx, step):
    lr = 0.1 / (1.0 + 0.01 * step)
    loss, grads = jax.value_and_grad(loss_fn)(params, idx)
    return jax.tree_util.tree_map(lambda p, g: p - lr * g, params, grads), loss


def main():
    params = init(jax.random.PRNGKey(0))
    order = np.random.default_rng(1)
    for step in range(STEPS):
        idx = order.integers(0, N, size=(BATCH,))
        params, loss = train_step(params, idx, step)
        if step % 4 == 0:
            print(f"step {step} loss {float(loss):.5f}")


if __name__ == "__main__":
    main()
