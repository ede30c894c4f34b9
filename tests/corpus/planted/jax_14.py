"""Small decoder with FSDP-style sharding over one host; bfloat16 compute."""
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P


@dataclasses.dataclass(frozen=True)
class Cfg:
    vocab: int = 512
    dim: int = 128
    heads: int = 4
    layers: int = 2
    seq: int = 64
    use_rope: bool = True
    tie: bool = True


def init(key, cfg):
    ks = iter(jax.random.split(key, 2 + 4 * cfg.layers))
    def mat(*s):
        return jax.random.normal(next(ks), s) * s[0] ** -0.5
    p = {"emb": mat(cfg.vocab, cfg.dim), "layers": []}
    for _ in range(cfg.layers):
        p["layers"].append({"qkv": mat(cfg.dim, 3 * cfg.dim), "proj": mat(cfg.dim, cfg.dim),
                            "up": mat(cfg.dim, 4 * cfg.dim), "down": mat(4 * cfg.dim, cfg.dim)})
    if not cfg.tie:
        p["head"] = mat(cfg.dim, cfg.vocab)
    return p


def norm(x):
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32 ** 2, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def rope(x):
    half = x.shape[-1] // 2
    freq = 10000.0 ** (-jnp.arange(half) / half)
    ang = jnp.arange(x.shape[1])[:, None] * freq
    cos, sin = jnp.cos(ang)[:, None].astype(x.dtype), jnp.sin(ang)[:, None].astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def forward(params, tokens, cfg):
    params = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
    x = params["emb"][tokens]
    b, t = tokens.shape
    mask = jnp.tril(jnp.ones((t, t), bool))
    for i, layer in enumerate(params["layers"]):
        q, k, v = jnp.split((norm(x) @ layer["qkv"]).reshape(b, t, cfg.heads, -1), 3, -1)
        if cfg.use_rope:
            q, k = rope(q), rope(k)
        att = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
        att = jax.nn.softmax(jnp.where(mask, att, -1e9)).astype(x.dtype)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", att, v).reshape(b, t, -1) @ layer["proj"]
        x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    head = params["emb"].T if cfg.tie else params["head"]
    return (norm(x) @ head).astype(jnp.float32)


def loss_fn(params, tokens, weights, cfg):
    logp = jax.nn.log_softmax(forward(params, tokens[:, :-1], cfg))
    nll = -jnp.take_along_axis(logp, tokens[:, 1:, None], -1)[..., 0]
    return jnp.sum(nll * weights) / jnp.maximum(weights.sum(), 1.0)


def spec_for(leaf, n):
    for axis, size in enumerate(leaf.shape):
        if size % n == 0:
            return P(*([None] * axis + ["fsdp"]))
    return P()


def make_step(cfg, shardings, data_sh):
    rep = NamedSharding(data_sh.mesh, P())

    @functools.partial(jax.jit, donate_argnums=(0,),
                       in_shardings=(shardings, data_sh, data_sh), out_shardings=(shardings, rep))
    def step(params, tokens, weights):
        loss, g = jax.value_and_grad(loss_fn)(params, tokens, weights, cfg)
        return jax.tree.map(lambda p, d: p - 0.1 * d.astype(p.dtype), params, g), loss
    return step


def main():
    cfg = Cfg()
    mesh = Mesh(np.array(jax.devices()), ("fsdp",))
    n = mesh.size
    shapes = jax.eval_shape(functools.partial(init, cfg=cfg), jax.random.key(0))
    shardings = jax.tree.map(lambda s: NamedSharding(mesh, spec_for(s, n)), shapes)
    params = jax.jit(init, static_argnums=1, out_shardings=shardings)(jax.random.key(0), cfg)
    data_sh = NamedSharding(mesh, P("fsdp"))
    step = make_step(cfg, shardings, data_sh)

    rng = np.random.default_rng(0)
    for i in range(30):
        tokens = rng.integers(0, cfg.vocab, size=(2 * n, cfg.seq + 1)).astype(np.int32)
        lengths = rng.integers(8, cfg.seq + 1, size=(2 * n, 1))
        weights = (np.arange(cfg.seq)[None] < lengths).astype(np.float32)
        tokens[:, 1:][weights == 0] = 0
        params, loss = step(params, jax.device_put(tokens, data_sh), jax.device_put(weights, data_sh))
        if i % 10 == 0:
            print(f"step {i} loss {loss:.3f}")


if __name__ == "__main__":
    main()
