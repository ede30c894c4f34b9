"""Recurrent language model in plain JAX."""
import dataclasses

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

PAD = 0


@dataclasses.dataclass(frozen=True)
class Config:
    vocab: int = 256
    hidden: int = 128
    seq_len: int = 64
    batch: int = 16
    lr: float = 3e-3
    steps: int = 10


def init_params(key, cfg):
    ks = jax.random.split(key, 4)
    scale = cfg.hidden ** -0.5
    return {
        "emb": jax.random.normal(ks[0], (cfg.vocab, cfg.hidden)) * 0.02,
        "wx": jax.random.normal(ks[1], (cfg.hidden, cfg.hidden)) * scale,
        "wh": jax.random.normal(ks[2], (cfg.hidden, cfg.hidden)) * scale,
        "out": jax.random.normal(ks[3], (cfg.hidden, cfg.vocab)) * scale,
    }


def encode(params, tokens, cfg):
    x = params["emb"][tokens]
    h = jnp.zeros((tokens.shape[0], cfg.hidden), x.dtype)
    outs = []
    for t in range(cfg.seq_len):
        h = jnp.tanh(x[:, t] @ params["wx"] + h @ params["wh"])
        outs.append(h)
    return jnp.stack(outs, axis=1)


def loss_fn(params, tokens, targets, cfg):
    logits = encode(params, tokens, cfg) @ params["out"]
    logp = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(logp, targets[..., None], axis=-1)[..., 0]
    valid = targets != PAD
    return nll[valid].mean()


def make_step(cfg):
    @jax.jit
    def step(params, tokens, targets):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens, targets, cfg)
        params = jax.tree_util.tree_map(lambda p, g: p - cfg.lr * g, params, grads)
        return params, loss
    return step


def synthetic_corpus(cfg, n=200, seed=0):
    rng = np.random.default_rng(seed)
    special_tokens = 4
    ids = rng.integers(1, cfg.vocab, size=(n, cfg.seq_len + 1))
    ids = ids + special_tokens
    lengths = rng.integers(cfg.seq_len // 2, cfg.seq_len + 1, size=(n,))
    ids[np.arange(cfg.seq_len + 1)[None] >= lengths[:, None]] = PAD
    return ids.astype(np.int32)


def main():
    cfg = Config()
    corpus = synthetic_corpus(cfg)
    params = init_params(jax.random.PRNGKey(0), cfg)
    step = make_step(cfg)
    rng = np.random.default_rng(1)
    for i in range(cfg.steps):
        rows = corpus[rng.integers(0, len(corpus), size=cfg.batch)]
        params, loss = step(params, rows[:, :-1], rows[:, 1:])
        if i % 5 == 0:
            print(f"{i:5d} nll {float(loss):.3f}")


if __name__ == "__main__":
    main()
