"""pmap ResNet-ish training, single host; clean logging and RNG handling."""
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

BATCH_PER_DEVICE = 8
STEPS = 120
LOG_EVERY = 100
AXIS = "devices"


def init(key, width=32, blocks=2, classes=10):
    keys = jax.random.split(key, blocks + 2)
    params = {"stem": jax.random.normal(keys[0], (3, 3, 3, width)) * 0.1}
    for i in range(blocks):
        params[f"block{i}"] = jax.random.normal(keys[i + 1], (3, 3, width, width)) * 0.05
    params["head"] = jax.random.normal(keys[-1], (width, classes)) * 0.1
    return params


def conv(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME",
                                    dimension_numbers=("NHWC", "HWIO", "NHWC"))


def forward(params, x, key, train, blocks=2):
    x = jax.nn.relu(conv(x, params["stem"]))
    for i in range(blocks):
        x = x + jax.nn.relu(conv(x, params[f"block{i}"]))
    x = x.mean((1, 2))
    if train:
        keep = jax.random.bernoulli(key, 0.9, x.shape)
        x = jnp.where(keep, x / 0.9, 0)
    return x @ params["head"]


@functools.partial(jax.pmap, axis_name=AXIS, donate_argnums=(0,))
def train_step(params, batch, key):
    key = jax.random.fold_in(key, lax.axis_index(AXIS))

    def loss_fn(p):
        logp = jax.nn.log_softmax(forward(p, batch["x"], key, train=True))
        return -jnp.mean(jnp.take_along_axis(logp, batch["y"][:, None], 1))

    loss, grads = jax.value_and_grad(loss_fn)(params)
    grads = lax.pmean(grads, AXIS)
    params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
    return params, lax.pmean(loss, AXIS)


@functools.partial(jax.pmap, axis_name=AXIS)
def eval_step(params, batch):
    logits = forward(params, batch["x"], None, train=False)
    correct = (logits.argmax(-1) == batch["y"]) & batch["valid"]
    return lax.psum(correct.sum(), AXIS), lax.psum(batch["valid"].sum(), AXIS)


def eval_batches(n, size, ndev):
    rng = np.random.default_rng(99)
    x, y = rng.normal(size=(n, 8, 8, 3)).astype(np.float32), rng.integers(0, 10, n)
    for i in range(0, n, size):
        bx, by = x[i:i + size], y[i:i + size]
        pad = size - len(bx)
        valid = np.arange(size) < len(bx)
        bx = np.pad(bx, ((0, pad), (0, 0), (0, 0), (0, 0)))
        by = np.pad(by, (0, pad))
        out = {"x": bx, "y": by, "valid": valid}
        yield {k: v.reshape((ndev, -1) + v.shape[1:]) for k, v in out.items()}


def main():
    ndev = jax.local_device_count()
    devices = jax.local_devices()
    params = jax.device_put_replicated(init(jax.random.PRNGKey(0)), devices) \
        if hasattr(jax, "device_put_replicated") else \
        jax.tree.map(lambda a: jnp.stack([a] * ndev), init(jax.random.PRNGKey(0)))
    base = jax.random.PRNGKey(1)
    rng = np.random.default_rng(0)
    size = BATCH_PER_DEVICE * ndev

    t0 = time.perf_counter()
    for step in range(STEPS):
        batch = {"x": rng.normal(size=(ndev, BATCH_PER_DEVICE, 8, 8, 3)).astype(np.float32),
                 "y": rng.integers(0, 10, size=(ndev, BATCH_PER_DEVICE))}
        step_key = jax.random.fold_in(base, step)
        params, loss = train_step(params, batch, jnp.broadcast_to(step_key, (ndev,) + step_key.shape))
        if step % LOG_EVERY == 0:
            print(f"{step}: loss {float(loss[0]):.4f}")
    jax.block_until_ready(params)
    print(f"{STEPS / (time.perf_counter() - t0):.1f} steps/s")

    counts = [eval_step(params, b) for b in eval_batches(300, size, ndev)]
    correct = sum(int(c[0]) for c, _ in counts)
    total = sum(int(t[0]) for _, t in counts)
    print("accuracy", correct / total, "on", total)


if __name__ == "__main__":
    main()
