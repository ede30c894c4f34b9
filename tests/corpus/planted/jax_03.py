"""Multi-host data-parallel regression with NamedSharding (v5litepod-16, 4 hosts)."""
import logging

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("train")

PER_HOST_BATCH = 64
DIM = 128
STEPS = 50


def init_params(key):
    k1, k2 = jax.random.split(key)
    return {
        "w1": jax.random.normal(k1, (DIM, 512)) / jnp.sqrt(DIM),
        "w2": jax.random.normal(k2, (512, 1)) / jnp.sqrt(512.0),
    }


def predict(params, x):
    return (jax.nn.gelu(x @ params["w1"]) @ params["w2"])[:, 0]


def loss_fn(params, x, y):
    return jnp.mean((predict(params, x) - y) ** 2)


@jax.jit
def train_step(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    params = jax.tree_util.tree_map(lambda p, g: p - 1e-2 * g, params, grads)
    return params, loss


@jax.jit
def eval_step(params, x, y):
    return loss_fn(params, x, y)


def host_batches(process_id):
    rng = np.random.default_rng(1000 + process_id)
    w = np.random.default_rng(7).normal(size=(DIM,))
    while True:
        x = rng.normal(size=(PER_HOST_BATCH, DIM)).astype(np.float32)
        yield x, (x @ w).astype(np.float32)


def main():
    log.info("found %d accelerator chips", jax.device_count())
    jax.distributed.initialize()

    mesh = Mesh(np.array(jax.devices()), ("data",))
    batch_sharding = NamedSharding(mesh, P("data"))
    replicated = NamedSharding(mesh, P())

    params = jax.jit(init_params, out_shardings=replicated)(jax.random.PRNGKey(0))

    it = host_batches(jax.process_index())
    for step in range(STEPS):
        x, y = next(it)
        x, y = jax.device_put((x, y), batch_sharding)
        params, loss = train_step(params, x, y)

        if step % 25 == 0 and jax.process_index() == 0:
            log.info("step %d loss %.4f", step, float(loss))
            val = eval_step(params, x, y)
            log.info("step %d val %.4f", step, float(val))

    preds = jax.jit(predict, out_shardings=batch_sharding)(params, x)
    preds = np.asarray(preds)
    if jax.process_index() == 0:
        np.save("preds.npy", preds)
        log.info("done, %d predictions", len(preds))


if __name__ == "__main__":
    main()
