"""Tensor-parallel MLP and a ring all-reduce check using shard_map."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map

DIM, HIDDEN, BATCH, STEPS = 128, 1024, 64, 60

mesh = Mesh(np.array(jax.devices()), ("model",))
TP = mesh.shape["model"]
SPECS = {"up": P(None, "model"), "down": P("model", None)}


def init(key):
    k1, k2 = jax.random.split(key)
    return {
        "up": jax.random.normal(k1, (DIM, HIDDEN)) * DIM ** -0.5,
        "down": jax.random.normal(k2, (HIDDEN, DIM)) * HIDDEN ** -0.5,
    }


@functools.partial(shard_map, mesh=mesh, in_specs=(SPECS, P()), out_specs=P())
def mlp(params, x):
    h = jax.nn.gelu(x @ params["up"])
    return lax.psum(h @ params["down"], "model")


@functools.partial(shard_map, mesh=mesh, in_specs=P("model"), out_specs=P("model"))
def ring_sum(x):
    acc, blk = x, x
    perm = [(i, (i + 1) % TP) for i in range(TP)]
    for hop in range(TP - 1):
        blk = lax.ppermute(blk, "model", perm)
        acc = acc + blk
    return acc


def loss_fn(params, x, y):
    return jnp.mean((mlp(params, x) - y) ** 2)


@functools.partial(jax.jit, donate_argnames=("params",), static_argnames=("verbose",))
def train_step(params, x, y, *, lr, verbose=False):
    if verbose:
        print("tracing train_step with", x.shape, x.dtype)
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    params = jax.tree.map(lambda p, g: p - lr * g, params, grads)
    return params, loss


def stream(seed):
    rng = np.random.default_rng(seed)
    rot = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0].astype(np.float32)
    while True:
        x = rng.normal(size=(BATCH, DIM)).astype(np.float32)
        yield x, x @ rot


def main():
    total = jax.jit(ring_sum)(jnp.arange(TP, dtype=jnp.float32))
    np.testing.assert_allclose(np.asarray(total), np.full(TP, TP * (TP - 1) / 2))

    shardings = {k: NamedSharding(mesh, s) for k, s in SPECS.items()}
    params = jax.jit(init, out_shardings=shardings)(jax.random.key(0))
    rep = NamedSharding(mesh, P())
    pending = None
    for step, (x, y) in zip(range(STEPS), stream(0)):
        x, y = jax.device_put((x, y), rep)
        lr = 0.5 * min(1.0, (step + 1) / 10)
        params, loss = train_step(params, x, y, lr=lr, verbose=True)
        if pending is not None and step % 20 == 0:
            print(f"step {step - 1} loss {float(pending):.4f}")
        pending = loss
    print(f"final loss {float(pending):.4f}")
    for name, p in params.items():
        print(name, p.shape, p.sharding.spec)


if __name__ == "__main__":
    main()
