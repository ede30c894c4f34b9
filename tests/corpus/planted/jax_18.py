"""Policy-gradient bandit/grid toy fully on device with scan and cond."""
import functools
import os
import pickle
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

GRID, HORIZON, ENVS = 5, 16, 64
CKPT = os.environ.get("CKPT", "")


def init(key):
    k1, k2 = jax.random.split(key)
    return {"w1": jax.random.normal(k1, (GRID * GRID, 64)) * 0.1,
            "w2": jax.random.normal(k2, (64, 4)) * 0.1}


def logits_fn(params, pos):
    obs = jax.nn.one_hot(pos[..., 0] * GRID + pos[..., 1], GRID * GRID)
    return jax.nn.relu(obs @ params["w1"]) @ params["w2"]


MOVES = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]], np.int32)


def rollout(params, key):
    def one_step(carry, key_t):
        pos, done = carry
        logp = jax.nn.log_softmax(logits_fn(params, pos))
        action = jax.random.categorical(key_t, logp)
        new_pos = jnp.clip(pos + jnp.asarray(MOVES)[action], 0, GRID - 1)
        pos = jnp.where(done[:, None], pos, new_pos)
        hit = jnp.all(pos == GRID - 1, axis=-1)
        reward = jnp.where(hit & ~done, 1.0, -0.01) * ~done
        lp = jnp.take_along_axis(logp, action[:, None], 1)[:, 0] * ~done
        return (pos, done | hit), (reward, lp)

    start = (jnp.zeros((ENVS, 2), jnp.int32), jnp.zeros((ENVS,), bool))
    _, (rewards, logps) = lax.scan(one_step, start, jax.random.split(key, HORIZON))
    return rewards, logps


def loss_fn(params, key):
    rewards, logps = rollout(params, key)
    returns = lax.stop_gradient(jnp.cumsum(rewards[::-1], 0)[::-1])
    adv = returns - returns.mean(1, keepdims=True)
    return -jnp.mean(logps * adv), rewards.sum(0).mean()


@functools.partial(jax.jit, static_argnames=("inner",))
def train_block(params, key, lr, inner):
    def body(params, k):
        (_, ret), g = jax.value_and_grad(loss_fn, has_aux=True)(params, k)
        norm = jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(g)))
        scale = lax.cond(norm > 1.0, lambda n: 1.0 / n, lambda n: jnp.ones_like(n), norm)
        return jax.tree.map(lambda p, d: p - lr * scale * d, params, g), ret
    return lax.scan(body, params, jax.random.split(key, inner))


def save(params, block):
    tmp = CKPT + ".tmp"
    with open(tmp, "wb") as f:
        pickle.dump({"params": jax.device_get(params), "block": block}, f)
    os.replace(tmp, CKPT)


def load(params):
    if not CKPT or not os.path.exists(CKPT):
        return params, 0
    with open(CKPT, "rb") as f:
        ck = pickle.load(f)
    return jax.device_put(ck["params"]), ck["block"] + 1


def main():
    debug = bool(int(os.environ.get("DEBUG", "0")))
    if debug:
        jax.config.update("jax_debug_nans", True)
    params, first = load(init(jax.random.key(0)))
    root = jax.random.key(1)
    for block in range(first, 6):
        t0 = time.perf_counter()
        params, rets = train_block(params, jax.random.fold_in(root, block), 0.5, inner=50)
        rets = np.asarray(rets)
        dt = time.perf_counter() - t0
        print(f"block {block}: return {rets[-10:].mean():.3f} ({50 / dt:.0f} updates/s)")
        if CKPT:
            save(params, block)


if __name__ == "__main__":
    main()
