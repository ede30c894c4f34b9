"""Data-parallel convnet with pmap on one host with eight chips."""
import os
import pickle

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CKPT = os.environ.get("CKPT_PATH", "convnet.pkl")
NUM_CHIPS = 4
STEPS = 20
GLOBAL_BATCH = 64


def init(key):
    k1, k2, k3 = jax.random.split(key, 3)
    return {
        "c1": jax.random.normal(k1, (3, 3, 3, 16)) * 0.1,
        "c2": jax.random.normal(k2, (3, 3, 16, 32)) * 0.1,
        "out": jax.random.normal(k3, (32, 10)) * 0.1,
    }


def conv(x, w, stride):
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def apply(params, x, key):
    x = jax.nn.relu(conv(x, params["c1"], 2))
    x = jax.nn.relu(conv(x, params["c2"], 2))
    x = x.mean(axis=(1, 2))
    mask = jax.random.bernoulli(key, 0.8, x.shape)
    x = jnp.where(mask, x / 0.8, 0.0)
    return x @ params["out"]


def loss_fn(params, batch, key):
    logits = apply(params, batch["image"], key)
    labels = jax.nn.one_hot(batch["label"], 10)
    return -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(logits), -1))


def train_step(params, momentum, batch, key):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch, key)
    loss = lax.pmean(loss, axis_name="batch")
    momentum = jax.tree_util.tree_map(lambda m, g: 0.9 * m + g, momentum, grads)
    params = jax.tree_util.tree_map(lambda p, m: p - 0.05 * m, params, momentum)
    return params, momentum, loss


p_train_step = jax.pmap(train_step, axis_name="batch", devices=jax.local_devices()[:NUM_CHIPS])


def replicate(tree):
    return jax.tree_util.tree_map(
        lambda a: jnp.broadcast_to(a, (NUM_CHIPS,) + a.shape), tree)


def shard(batch):
    return {k: v.reshape((NUM_CHIPS, -1) + v.shape[1:]) for k, v in batch.items()}


def data(seed):
    rng = np.random.default_rng(seed)
    while True:
        yield {
            "image": rng.normal(size=(GLOBAL_BATCH, 32, 32, 3)).astype(np.float32),
            "label": rng.integers(0, 10, size=(GLOBAL_BATCH,)),
        }


def save(params, momentum, step):
    host = jax.tree_util.tree_map(lambda a: np.asarray(a[0]), params)
    tmp = CKPT + ".tmp"
    with open(tmp, "wb") as f:
        pickle.dump({"params": host, "step": step}, f)
    os.replace(tmp, CKPT)


def main():
    params = init(jax.random.PRNGKey(0))
    momentum = jax.tree_util.tree_map(jnp.zeros_like, params)
    start = 0
    if os.path.exists(CKPT):
        with open(CKPT, "rb") as f:
            saved = pickle.load(f)
        params, start = saved["params"], saved["step"]
    params, momentum = replicate(params), replicate(momentum)

    key = jax.random.PRNGKey(1)
    for step, batch in zip(range(start, STEPS), data(start)):
        key, sub = jax.random.split(key)
        keys = jnp.broadcast_to(sub, (NUM_CHIPS,) + sub.shape)
        params, momentum, loss = p_train_step(params, momentum, shard(batch), keys)
        if step % 10 == 0:
            print(step, float(loss[0]))
            save(params, momentum, step)


if __name__ == "__main__":
    main()
