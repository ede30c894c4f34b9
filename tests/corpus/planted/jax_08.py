"""Ring-exchange sequence model with shard_map."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

try:
    from jax import shard_map
    SM_KW = {"check_vma": False}
except ImportError:
    from jax.experimental.shard_map import shard_map
    SM_KW = {"check_rep": False}

GLOBAL_BATCH = 100
SEQ, DIM, CLASSES = 64, 32, 8
STEPS = 12

mesh = Mesh(np.array(jax.devices()), ("shards",))
N = mesh.shape["shards"]


def init(key):
    k1, k2, k3 = jax.random.split(key, 3)
    return {
        "mix": jax.random.normal(k1, (DIM, DIM)) * DIM ** -0.5,
        "nbr": jax.random.normal(k2, (DIM, DIM)) * DIM ** -0.5,
        "cls": jax.random.normal(k3, (DIM, CLASSES)) * DIM ** -0.5,
    }


def ring_mean(x):
    """Mean over the blocks of every shard, passing blocks round the ring."""
    total, block = x, x
    for _ in range(N - 1):
        block = lax.ppermute(block, "shards", [(i, i + 1) for i in range(N - 1)])
        total = total + block
    return total / N


def local_loss(params, x, y):
    ctx = ring_mean(x.mean(axis=(0, 1), keepdims=True))
    h = jnp.tanh(x @ params["mix"] + ctx @ params["nbr"]).mean(axis=1)
    logp = jax.nn.log_softmax(h @ params["cls"])
    return -jnp.mean(jnp.take_along_axis(logp, y[:, None], axis=1))


@jax.jit
@functools.partial(
    shard_map, mesh=mesh,
    in_specs=(P(), P("shards"), P("shards")),
    out_specs=(P(), P()), **SM_KW)
def train_step(params, x, y):
    loss, grads = jax.value_and_grad(local_loss)(params, x, y)
    loss = lax.pmean(loss, "shards")
    params = jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, grads)
    return params, loss


def batches(seed=0):
    rng = np.random.default_rng(seed)
    while True:
        y = rng.integers(0, CLASSES, size=(GLOBAL_BATCH,))
        x = rng.normal(size=(GLOBAL_BATCH, SEQ, DIM)) + y[:, None, None] * 0.1
        yield x.astype(np.float32), y.astype(np.int32)


def main():
    x_sharding = NamedSharding(mesh, P("data", None, None))
    y_sharding = NamedSharding(mesh, P("shards"))
    params = jax.device_put(init(jax.random.PRNGKey(0)), NamedSharding(mesh, P()))
    for step, (x, y) in zip(range(STEPS), batches()):
        x = jax.device_put(x, x_sharding)
        y = jax.device_put(y, y_sharding)
        params, loss = train_step(params, x, y)
        if step % 4 == 0:
            print(f"step {step}: {float(loss):.4f}")


if __name__ == "__main__":
    main()
