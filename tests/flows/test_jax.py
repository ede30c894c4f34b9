"""JAX on a slice: processes find each other and train together, as on TPU VMs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from tests.support.job_following import follow
from tests.support.prerequisites import require_python
from tests.support.stack_jobs import displayed_log
from tpuctl.api import Tpuctl
from tpuctl.model.events import Event, LogChunk

# The newest for Python 3.10, which all images but TPU7x's have, and the newest. `jax[tpu]` brings
# requests, too.
OLD, NEW = "jax==0.6.2\nrequests\n", "jax==0.10.2\nrequests\n"

# Least squares, of which each process has other data.
SCRIPT = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()), ("data",))
split = NamedSharding(mesh, PartitionSpec("data"))
inputs = np.random.default_rng(jax.process_index()).normal(size=(8, 3)).astype(np.float32)
targets = inputs @ np.array([1, -2, 3], np.float32)
batch = [jax.make_array_from_process_local_data(split, part) for part in (inputs, targets)]


@jax.jit
def step(weights, inputs, targets):
    gradient = jax.grad(lambda weights: jnp.mean((inputs @ weights - targets) ** 2))(weights)
    return weights - 0.1 * gradient


weights = jax.device_put(jnp.zeros(3), NamedSharding(mesh, PartitionSpec()))
for _ in range(200):
    weights = step(weights, *batch)
found = np.round(np.asarray(weights.addressable_data(0)), 2).tolist()
print("process", jax.process_index(), "of", jax.process_count(), "found", found)
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("tpu", "workers", "jax"),
    [
        ({"type_name": "v3-32", "zone": "europe-west4-a"}, 4, OLD),
        (
            {"type_name": "tpu7x-8", "zone": "us-central1-c", "runtime": "auto, api: compute"},
            1,
            NEW,
        ),
        ({"type_name": "v6e-16", "zone": "us-east5-b", "runtime": "auto, api: compute"}, 4, OLD),
    ],
    ids=["slice", "instance", "group"],
)
@pytest.mark.usefixtures("one_device")
async def test_processes_of_slice_train_together(
    make_stack: Callable[..., Tpuctl],
    events: list[Event],
    tpu: dict[str, str],
    workers: int,
    jax: str,
) -> None:
    if jax == NEW:
        require_python("3.12")
    stack = make_stack(
        **tpu,
        extra="job: {workers: all, requirements: requirements.txt}\n",
    )
    folder = stack.stack_file.parent
    (folder / "requirements.txt").write_text(jax, "utf-8")
    script = folder / "train.py"
    script.write_text(SCRIPT, "utf-8")
    await stack.up()
    record = await stack.submit(script, check=False)
    async with AsyncExitStack() as exits:
        transports = await stack.transports()
        for transport in transports.values():
            exits.push_async_callback(transport.close)
        following = follow(
            record, stack.store, transports, events.append, shown_workers=record.workers
        )
        assert await asyncio.wait_for(following, 240) == 0, displayed_log(events)
    for worker in range(workers):
        log = b"".join(
            event.data for event in events if isinstance(event, LogChunk) and event.worker == worker
        )
        assert f"process {worker} of {workers} found [1.0, -2.0, 3.0]\n" in log.decode()
    await stack.down(delete_bucket=True)
