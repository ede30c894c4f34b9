"""Trains on the devices of all processes; with `barrier`, process 0 alone waits for the others."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()), ("data",))
split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
inputs = np.random.default_rng(jax.process_index()).normal(size=(8, 16)).astype(np.float32)
batch = jax.make_array_from_process_local_data(split, inputs)
weights = jax.device_put(jnp.ones((16, 4)), whole)


@jax.jit
def train_step(weights, batch):
    loss, gradient = jax.value_and_grad(lambda weights: jnp.mean((batch @ weights) ** 2))(weights)
    return weights - 0.1 * gradient, loss


for _step in range(100):
    weights, loss = train_step(weights, batch)
    if jax.process_index() == 0 and "barrier" in sys.argv:
        multihost_utils.sync_global_devices("saved")
    if jax.process_index() == 0 and "read" in sys.argv:
        print(np.asarray(batch).sum())
