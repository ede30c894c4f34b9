"""Donated train state with a background checkpoint writer."""
import functools
import os
import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np

CKPT = os.environ.get("CKPT", "state.pkl")
STEPS = 60


def init_state(key):
    k1, k2 = jax.random.split(key)
    params = {
        "w": jax.random.normal(k1, (256, 256)) / 16.0,
        "v": jax.random.normal(k2, (256, 4)) / 16.0,
    }
    zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
    ema = jax.tree_util.tree_map(jnp.copy, params)
    return {"params": params, "mu": zeros, "ema": ema, "step": jnp.zeros((), jnp.int32)}


def loss_fn(params, x, y):
    logits = jax.nn.relu(x @ params["w"]) @ params["v"]
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * y, -1))


@functools.partial(jax.jit, donate_argnums=0)
def train_step(state, x, y):
    loss, g = jax.value_and_grad(loss_fn)(state["params"], x, y)
    mu = jax.tree_util.tree_map(lambda m, d: 0.9 * m + d, state["mu"], g)
    params = jax.tree_util.tree_map(lambda p, m: p - 0.02 * m, state["params"], mu)
    ema = jax.tree_util.tree_map(lambda e, p: 0.99 * e + 0.01 * p, state["ema"], params)
    return {"params": params, "mu": mu, "ema": ema, "step": state["step"] + 1}, loss


def write(state):
    host = jax.tree_util.tree_map(np.asarray, state)
    with open(CKPT, "wb") as f:
        pickle.dump(host, f)


def save_async(state):
    t = threading.Thread(target=write, args=(state,))
    t.start()
    return t


def restore(state):
    if not os.path.exists(CKPT):
        return state
    with open(CKPT, "rb") as f:
        saved = pickle.load(f)
    return jax.tree_util.tree_map(lambda old, new: jnp.asarray(new, old.dtype), state, saved)


def stream(seed=0):
    rng = np.random.default_rng(seed)
    while True:
        x = rng.normal(size=(64, 256)).astype(np.float32)
        yield x, np.eye(4, dtype=np.float32)[(x[:, :4]).argmax(-1)]


def main():
    state = init_state(jax.random.PRNGKey(0))
    restore(state)
    start = int(state["step"])
    writer = None
    data = stream(seed=start)
    for step in range(start, STEPS):
        x, y = next(data)
        new_state, loss = train_step(state, x, y)
        if step % 20 == 0:
            delta = jax.tree_util.tree_map(lambda a, b: jnp.abs(a - b).max(), new_state["params"], state["params"])
            print(step, float(loss), {k: float(v) for k, v in delta.items()})
            if writer is not None:
                writer.join()
            writer = save_async(new_state)
        state = new_state
    if writer is not None:
        writer.join()


if __name__ == "__main__":
    main()
