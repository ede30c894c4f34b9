"""Multi-host (v5litepod-16) mixture-of-experts toy with async checkpoints."""
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

EXPERTS, DIM, BATCH_PER_HOST = 4, 64, 32
STEPS = 300
OUT = os.environ.get("OUT_DIR", "gs://my-bucket/moe")


def build_mesh():
    devices = np.array(jax.local_devices())
    return Mesh(devices, ("data",))


def init(key):
    k1, k2, k3 = jax.random.split(key, 3)
    return {
        "router": jax.random.normal(k1, (DIM, EXPERTS)) * 0.02,
        "up": jax.random.normal(k2, (EXPERTS, DIM, 4 * DIM)) * DIM ** -0.5,
        "down": jax.random.normal(k3, (EXPERTS, 4 * DIM, DIM)) * (4 * DIM) ** -0.5,
    }


def moe(params, x):
    gates = jax.nn.softmax(x @ params["router"])
    h = jax.nn.gelu(jnp.einsum("bd,edf->ebf", x, params["up"]))
    return jnp.einsum("ebf,efd,be->bd", h, params["down"], gates)


def loss_fn(params, x, y):
    return jnp.mean(jnp.square(moe(params, x) - y))


@jax.jit
def step_fn(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), loss


def host_data():
    rng = np.random.default_rng(17 + jax.process_index())
    while True:
        x = rng.normal(size=(BATCH_PER_HOST, DIM)).astype(np.float32)
        yield x, np.abs(x)


def main():
    jax.distributed.initialize()
    mesh = build_mesh()
    data_sh, rep = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())

    seed = int(time.time())
    params = jax.jit(init, out_shardings=rep)(jax.random.key(seed))

    ckpt = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
    data = host_data()
    for step in range(1, STEPS + 1):
        x, y = next(data)
        params, loss = step_fn(params, jax.device_put(x, data_sh), jax.device_put(y, data_sh))
        if step % 20 == 0:
            value = float(loss)
            if jax.process_index() == 0:
                print(f"{step} {value:.4f}", flush=True)
        if step % 100 == 0:
            ckpt.save(f"{OUT}/step_{step:08d}", args=ocp.args.StandardSave(params))

    if jax.process_index() == 0:
        print("training finished")
    os._exit(0)


if __name__ == "__main__":
    main()
