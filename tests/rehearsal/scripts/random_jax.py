"""Trains with dropout by the key that its argument selects, waits in each step, and with `deleted`
reads what it donated."""

import functools
import sys

import jax
import jax.numpy as jnp

case = sys.argv[1]
table = jnp.ones((2100, 2100))
first_key = jax.random.key(0)


@functools.partial(jax.jit, donate_argnums=0)
def train_step(weights, batch, key, step):
    if case == "folded":
        key = jax.random.fold_in(key, step)
    if case == "constant":
        key = jax.random.fold_in(key, 7)

    def loss_of(weights):
        hidden = batch @ weights
        if case != "unused":
            hidden *= jax.random.bernoulli(key, 0.5, hidden.shape)
        return jnp.mean(hidden**2) + table[0].mean()

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - 0.1 * gradient, loss


weights, batch = jnp.ones((16, 4)), jnp.ones((8, 16))
for step in range(100):
    key = jax.random.fold_in(first_key, step) if case == "new" else first_key
    before = weights
    weights, loss = train_step(weights, batch, key, jnp.int32(step))
    jax.block_until_ready(loss)
    if case == "deleted" and step == 1:
        print(before.sum())
