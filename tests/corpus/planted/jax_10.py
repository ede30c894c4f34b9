"""pmap across hosts of a v5litepod-16; every host feeds its own chips."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils

jax.distributed.initialize()

GLOBAL_BATCH = 512
IMG = 16
STEPS = 40


def init(key):
    k1, k2 = jax.random.split(key)
    return {
        "enc": jax.random.normal(k1, (IMG * IMG, 128)) * 0.05,
        "dec": jax.random.normal(k2, (128, IMG * IMG)) * 0.05,
    }


def recon_loss(params, images):
    flat = images.reshape(images.shape[0], -1)
    z = jax.nn.relu(flat @ params["enc"])
    return jnp.mean((z @ params["dec"] - flat) ** 2)


@functools.partial(jax.pmap, axis_name="i")
def update(params, images):
    loss, grads = jax.value_and_grad(recon_loss)(params, images)
    grads = lax.psum(grads, "i")
    loss = lax.pmean(loss, "i")
    return jax.tree_util.tree_map(lambda p, g: p - 0.05 * g, params, grads), loss


class ImageFolder:
    """Pretend image store: image k is a function of k only."""

    def __init__(self, n):
        self.n = n

    def __getitem__(self, ids):
        base = np.linspace(0, 1, IMG * IMG, dtype=np.float32).reshape(1, IMG, IMG)
        return np.sin(base * (1 + np.asarray(ids)[:, None, None] % 13))


def loader(store, batch):
    order = np.random.default_rng(0).permutation(store.n)
    while True:
        for s in range(0, store.n - batch + 1, batch):
            yield store[order[s:s + batch]]


def main():
    host_batch = GLOBAL_BATCH // jax.process_count()
    n_local = jax.local_device_count()
    params = init(jax.random.PRNGKey(0))
    params = jax.tree_util.tree_map(lambda a: np.stack([np.asarray(a)] * n_local), params)

    data = loader(ImageFolder(5000), host_batch)
    for step in range(STEPS):
        images = next(data)
        images = images.reshape((jax.device_count(), -1, IMG, IMG))
        params, loss = update(params, images)
        if step % 20 == 0:
            value = float(loss[0])
            if jax.process_index() == 0:
                print(f"step {step}: recon {value:.5f}")

    if jax.process_index() == 0:
        host = jax.tree_util.tree_map(lambda a: np.asarray(a[0]), params)
        np.savez("autoencoder.npz", **host)
        multihost_utils.sync_global_devices("saved")


if __name__ == "__main__":
    main()
