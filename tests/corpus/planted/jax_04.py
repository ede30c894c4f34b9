"""Multi-host data parallel training with global arrays (v5litepod-16)."""
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

try:
    import orbax.checkpoint as ocp
except ImportError:
    ocp = None

CKPT_DIR = os.environ.get("CKPT_DIR", "")
GLOBAL_BATCH = 256
STEPS = 200
USE_BIAS = True


def init_params(key):
    k1, k2 = jax.random.split(key)
    params = {
        "w1": jax.random.normal(k1, (128, 512)) * 0.05,
        "w2": jax.random.normal(k2, (512, 128)) * 0.05,
    }
    if USE_BIAS:
        params["b1"] = jnp.zeros((512,))
    return params


def loss_fn(params, x, y):
    h = x @ params["w1"]
    if "b1" in params:
        h = h + params["b1"]
    out = jax.nn.gelu(h) @ params["w2"]
    return jnp.mean((out - y) ** 2)


def step_fn(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
    return params, loss


def local_batches(rows, seed):
    rng = np.random.default_rng(seed)
    while True:
        x = rng.normal(size=(rows, 128)).astype(np.float32)
        yield x, np.roll(x, 1, axis=1)


def main():
    if len(os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1:
        jax.distributed.initialize()

    mesh = Mesh(np.array(jax.devices()), ("data",))
    data_sh, rep_sh = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    rows = GLOBAL_BATCH // jax.process_count()

    params = jax.jit(init_params, out_shardings=rep_sh)(jax.random.key(0))
    train_step = jax.jit(step_fn, donate_argnums=(0,), out_shardings=(rep_sh, rep_sh))

    manager, start = None, 0
    if CKPT_DIR and ocp is not None:
        manager = ocp.CheckpointManager(
            CKPT_DIR, options=ocp.CheckpointManagerOptions(max_to_keep=3, save_interval_steps=50))
        latest = manager.latest_step()
        if latest is not None:
            abstract = jax.tree.map(
                lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), params)
            params = manager.restore(latest, args=ocp.args.StandardRestore(abstract))
            start = latest + 1

    stream = local_batches(rows, seed=(start + 1) * 1000 + jax.process_index())
    losses, t0 = [], time.time()
    for step in range(start, STEPS):
        bx, by = next(stream)
        x = jax.make_array_from_process_local_data(data_sh, bx)
        y = jax.make_array_from_process_local_data(data_sh, by)
        params, loss = train_step(params, x, y)
        if manager is not None:
            manager.save(step, args=ocp.args.StandardSave(params))
        if step % 10 == 0:
            loss.block_until_ready()  # keep the host at most ten steps ahead
        if step % 100 == 0:
            losses.append(float(loss))
            if jax.process_index() == 0:
                print(f"step {step} loss {losses[-1]:.5f} {time.time() - t0:.1f}s", flush=True)

    if manager is not None:
        manager.wait_until_finished()
    multihost_utils.sync_global_devices("end_of_training")
    if jax.process_index() == 0:
        total = sum(int(np.prod(p.shape)) for p in jax.tree.leaves(params))
        print("finished with", total, "parameters")


if __name__ == "__main__":
    main()
