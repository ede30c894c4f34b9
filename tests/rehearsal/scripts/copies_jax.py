"""Trains on four devices, whose gradients the case combines or not; `statistics` are each device's
own."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

kind, case = sys.argv[1:]
mesh = Mesh(np.array(jax.devices()), ("data",))
whole, split = PartitionSpec(), PartitionSpec("data")


def train_step(state, batch):
    loss, gradient = jax.value_and_grad(lambda weights: jnp.mean((batch @ weights) ** 2))(
        state["weights"]
    )
    if case != "apart":
        gradient = jax.lax.pmean(gradient, "data")
    mean = batch.mean(0) if case == "statistics" else jax.lax.pmean(batch.mean(0), "data")
    return {"weights": state["weights"] - 0.1 * gradient, "mean": mean}, loss


state = {"weights": jnp.ones((16, 4)), "mean": jnp.zeros(16)}
if kind == "pmap":
    step = jax.pmap(train_step, axis_name="data", donate_argnums=0)
    state = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), state)
elif kind == "shard_map":
    specs = {"in_specs": (whole, split), "out_specs": (whole, whole)}
    step = jax.jit(jax.shard_map(train_step, mesh=mesh, check_vma=False, **specs))
else:

    @functools.partial(jax.jit, out_shardings=jax.NamedSharding(mesh, whole))
    def step(state, batch):
        return jax.vmap(train_step, (None, 0), (None, 0), axis_name="data")(state, batch)


numbers = np.random.default_rng(0)
for _ in range(100):
    batch = numbers.normal(size=(4, 8, 16) if kind != "shard_map" else (32, 16))
    state, loss = step(state, batch.astype(np.float32))
