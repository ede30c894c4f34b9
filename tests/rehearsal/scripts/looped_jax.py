"""Prints which steps loop over the first dimension of their batch."""

import jax
import jax.numpy as jnp

from tpuctl.preflight.shim.jax.looped_arguments import is_looped

weights = jnp.ones((16, 4))


def update(weights, batch):
    return weights - jax.grad(lambda weights: jnp.mean((batch @ weights) ** 2))(weights)


def plain(weights, batch):
    return update(weights, batch)


def accumulating(weights, batch):  # a loop over parts of the batch
    parts = batch.reshape(4, -1, 16)
    return jax.lax.scan(lambda weights, part: (update(weights, part), 0), weights, parts)[0]


def scanned(weights, batches):
    return jax.lax.scan(lambda weights, batch: (update(weights, batch), 0), weights, batches)[0]


def indexed(weights, batches):
    batches = batches.astype(jnp.bfloat16)
    return jax.lax.fori_loop(0, 8, lambda i, weights: update(weights, batches[i]), weights)


def unrolled(weights, batches):
    for i in range(batches.shape[0]):
        weights = update(weights, batches[i])
    return weights


for step in (plain, accumulating, scanned, indexed, unrolled):
    shape = (32, 16) if step in (plain, accumulating) else (8, 32, 16)
    program = jax.make_jaxpr(jax.jit(step))(weights, jnp.ones(shape)).jaxpr
    print(step.__name__, is_looped(program, program.invars[1]))
