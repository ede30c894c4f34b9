"""Multi-host fine-tuning loop with a time budget (v5litepod-16)."""
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

BUDGET_S = float(os.environ.get("BUDGET_S", "600"))
OUT = os.environ.get("OUT_DIR", "gs://my-bucket/runs/ft-small")
NUM_EXAMPLES = 10_007
LOCAL_BATCH = 32


def param_key(root, name):
    return jax.random.fold_in(root, hash(name) & 0x7FFFFFFF)


def init_params():
    root = jax.random.key(42)
    shapes = {"proj_in": (64, 256), "proj_mid": (256, 256), "proj_out": (256, 8)}
    return {n: jax.random.normal(param_key(root, n), s) * s[0] ** -0.5 for n, s in shapes.items()}


def loss_fn(params, x, y):
    h = jax.nn.silu(x @ params["proj_in"])
    h = h + jax.nn.silu(h @ params["proj_mid"])
    logp = jax.nn.log_softmax(h @ params["proj_out"])
    return -jnp.mean(jnp.take_along_axis(logp, y[:, None], 1))


def local_examples():
    ids = np.arange(NUM_EXAMPLES)[jax.process_index()::jax.process_count()]
    rng = np.random.default_rng(0)
    table = rng.normal(size=(8, 64)).astype(np.float32)
    for start in range(0, len(ids) - LOCAL_BATCH + 1, LOCAL_BATCH):
        block = ids[start:start + LOCAL_BATCH]
        labels = (block * 2654435761 % 8).astype(np.int32)
        keep = labels != (jax.process_index() % 8)
        if keep.mean() < 0.85:
            continue
        noise = np.random.default_rng(start).normal(size=(LOCAL_BATCH, 64))
        yield (table[labels] + 0.3 * noise).astype(np.float32), labels


def main():
    jax.distributed.initialize()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    data_sh = NamedSharding(mesh, P("data"))
    rep = NamedSharding(mesh, P())
    params = jax.jit(init_params, out_shardings=rep)()

    @jax.jit
    def train_step(params, x, y):
        loss, g = jax.value_and_grad(loss_fn)(params, x, y)
        return jax.tree.map(lambda p, d: p - 0.02 * d, params, g), loss

    mngr = ocp.CheckpointManager(OUT, options=ocp.CheckpointManagerOptions(max_to_keep=2))
    t_start = time.time()
    step = 0
    for x, y in local_examples():
        gx = jax.make_array_from_process_local_data(data_sh, x)
        gy = jax.make_array_from_process_local_data(data_sh, y)
        params, loss = train_step(params, gx, gy)
        step += 1
        if step % 100 == 0:
            value = float(loss)
            if jax.process_index() == 0:
                print("step", step, "loss", value)
                mngr.save(step, args=ocp.args.StandardSave(params))
        if time.time() - t_start > BUDGET_S:
            break

    mngr.wait_until_finished()
    if jax.process_index() == 0:
        print("stopped after", step, "steps")


if __name__ == "__main__":
    main()
