"""Toy denoising diffusion model, bf16 weights."""
import jax
import jax.numpy as jnp
import numpy as np

T = 100
STEPS = 12
BATCH = 32
BETAS = np.linspace(1e-4, 0.02, T, dtype=np.float32)
ALPHA_BAR = np.cumprod(1.0 - BETAS)
SEEN = []


def init_params(key, dim=64, width=256):
    ks = jax.random.split(key, 3)
    params = {
        "in": jax.random.normal(ks[0], (dim, width)) * dim ** -0.5,
        "time": jax.random.normal(ks[1], (T, width)) * 0.02,
        "out": jax.random.normal(ks[2], (width, dim)) * width ** -0.5,
    }
    return jax.tree_util.tree_map(lambda p: p.astype(jnp.bfloat16), params)


def denoise(params, x, t):
    h = jax.nn.silu(x.astype(jnp.bfloat16) @ params["in"] + params["time"][t])
    return (h @ params["out"]).astype(jnp.float32)


def record(loss):
    SEEN.append(float(loss))


@jax.jit
def loss_and_grads(params, x0, key):
    kt, kn = jax.random.split(key)
    t = jax.random.randint(kt, (x0.shape[0],), 0, T)
    noise = jax.random.normal(kn, x0.shape)
    ab = jnp.asarray(ALPHA_BAR)[t][:, None]
    xt = jnp.sqrt(ab) * x0 + jnp.sqrt(1 - ab) * noise

    def loss_fn(p):
        return jnp.mean((denoise(p, xt, t) - noise) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    jax.debug.callback(record, loss)
    return loss, grads


def adam_update(params, grads, m, v, step, lr):
    m = jax.tree_util.tree_map(lambda a, g: 0.9 * a + 0.1 * g.astype(jnp.float32), m, grads)
    v = jax.tree_util.tree_map(lambda a, g: 0.999 * a + 0.001 * jnp.square(g.astype(jnp.float32)), v, grads)
    c1, c2 = 1 - 0.9 ** step, 1 - 0.999 ** step

    def upd(p, a, b):
        return p - lr * (a / c1) / (jnp.sqrt(b / c2) + 1e-8)

    return jax.tree_util.tree_map(upd, params, m, v), m, v


def augment(example):
    flipped = jnp.flip(example)
    return jnp.where(example.sum() > 0, flipped, example) / 2.0


def dataset(n=512, dim=64, seed=0):
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(n, dim)).astype(np.float32)
    while True:
        rows = base[rng.integers(0, n, size=BATCH)]
        yield np.stack([np.asarray(augment(r)) for r in rows])


def main():
    params = init_params(jax.random.PRNGKey(0))
    m = jax.tree_util.tree_map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    v = jax.tree_util.tree_map(jnp.copy, m)
    key = jax.random.PRNGKey(1)
    for step, x0 in zip(range(1, STEPS + 1), dataset()):
        key, sub = jax.random.split(key)
        loss, grads = loss_and_grads(params, x0, sub)
        params, m, v = adam_update(params, grads, m, v, step, 1e-3)
    print("mean loss", np.mean(SEEN), "over", len(SEEN), "steps")


if __name__ == "__main__":
    main()
