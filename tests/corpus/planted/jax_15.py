"""Contrastive two-tower training; settings collected from several debugging sessions."""
import os
import pickle
import shutil

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_debug_nans", True)

WORKDIR = os.environ.get("WORKDIR", "two_tower_run")
STEPS = 200


def tower(params, x):
    h = jax.nn.relu(x @ params["w1"])
    z = h @ params["w2"]
    return z / jnp.sqrt(jnp.sum(z * z, -1, keepdims=True) + 1e-6)


def init(key, dim):
    a, b, c, d = jax.random.split(key, 4)
    def one(k1, k2):
        return {"w1": jax.random.normal(k1, (dim, 256)) * dim ** -0.5,
                "w2": jax.random.normal(k2, (256, 128)) / 16.0}
    return {"query": one(a, b), "doc": one(c, d), "temp": jnp.asarray(2.0)}


def loss_fn(params, q, d):
    sim = tower(params["query"], q) @ tower(params["doc"], d).T * jnp.exp(params["temp"])
    diag = jnp.arange(sim.shape[0])
    left = jax.nn.log_softmax(sim, axis=1)[diag, diag]
    right = jax.nn.log_softmax(sim, axis=0)[diag, diag]
    return -0.5 * jnp.mean(left + right)


@jax.jit
def train_step(params, q, d):
    loss, grads = jax.value_and_grad(loss_fn)(params, q, d)
    return jax.tree_util.tree_map(lambda p, g: p - 0.05 * g, params, grads), loss


def prepare_workdir():
    if os.path.isdir(WORKDIR):
        shutil.rmtree(WORKDIR)
    os.makedirs(os.path.join(WORKDIR, "ckpt"))
    os.makedirs(os.path.join(WORKDIR, "profile"))


def latest():
    files = sorted(os.listdir(os.path.join(WORKDIR, "ckpt")))
    return os.path.join(WORKDIR, "ckpt", files[-1]) if files else None


def save(params, step):
    path = os.path.join(WORKDIR, "ckpt", f"{step:06d}.pkl")
    with open(path + ".part", "wb") as f:
        pickle.dump((step, jax.device_get(params)), f)
    os.replace(path + ".part", path)


def pairs(batch=64, dim=96, seed=0):
    rng = np.random.default_rng(seed)
    while True:
        q = rng.normal(size=(batch, dim)).astype(np.float32)
        yield q, (q[:, ::-1] + 0.1 * rng.normal(size=q.shape)).astype(np.float32)


def main():
    prepare_workdir()
    params, start = init(jax.random.PRNGKey(0), 96), 0
    if latest():
        with open(latest(), "rb") as f:
            start, params = pickle.load(f)

    jax.profiler.start_trace(os.path.join(WORKDIR, "profile"))
    data = pairs(seed=start)
    for step in range(start, STEPS):
        q, d = next(data)
        params, loss = train_step(params, q, d)
        if step % 50 == 0:
            print(f"{step} {float(loss):.4f}")
            save(params, step)
    jax.profiler.stop_trace()


if __name__ == "__main__":
    main()
