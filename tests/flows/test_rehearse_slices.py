"""JAX steps compiled for exactly the slices of a stack, sold by either API, one or several."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.flows.test_rehearse import RehearseCommand
from tpuctl.api import Tpuctl
from tpuctl.interpreters import current

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]  # installs JAX once

# Splits its batch over all devices, and its weights over those of each slice: between slices, only
# the gradient is summed.
TRAIN = """
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

devices = jax.devices()
slices = len({getattr(device, "slice_index", 0) for device in devices})
grid = np.array(devices).reshape(-1, 1)
if slices > 1:
    # Not the devices' own order: slices are the second axis.
    grid = mesh_utils.create_hybrid_device_mesh((len(devices) // slices, 1), (1, slices))
mesh = Mesh(grid, ("first", "second"))
split, rows = (NamedSharding(mesh, PartitionSpec(axes)) for axes in (mesh.axis_names, "first"))
weights = jax.device_put(jnp.zeros((512, 512)), rows)
batch = jax.device_put(np.zeros((16 * len(devices), 512), np.float32), split)


@functools.partial(jax.jit, donate_argnums=0)
def train_step(weights, batch):
    def loss_of(weights):
        return jnp.mean((batch @ weights - batch) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - 0.1 * gradient, loss


train_step(weights, batch)
print("not reached")
"""
GIB = 1 << 30


@pytest.fixture
def command(make_stack: Callable[..., Tpuctl]) -> RehearseCommand:
    command = RehearseCommand(make_stack())
    command.write(TRAIN)
    command.write("jax[tpu]==0.10.2\n", "requirements.txt")
    command.write(current().minor, ".python-version")  # the image's has no such JAX
    return command


def write_stack(command: RehearseCommand, tpu: str) -> None:
    text = f"stack: slices\nproject: {{id: local-project}}\ntpu: {{{tpu}}}\n"
    command.write(text, "tpuctl.yaml")


@pytest.mark.parametrize(
    ("tpu", "topology", "devices", "gib"),
    [
        ("type: v6e-8, api: compute", "2x4", 8, 32),
        ("type: v5p-2, api: compute", "1x1x1", 1, 96),
        ("type: v5p-128, topology: 4x4x4", "4x4x4", 64, 96),
        ("type: tpu7x-16", "2x2x2", 16, 96),  # half of a chip's memory
    ],
)
def test_step_is_compiled_for_the_slice_of_the_stack(
    command: RehearseCommand, tpu: str, topology: str, devices: int, gib: int
) -> None:
    write_stack(command, tpu)
    batch = str(16 * devices)
    code, report = command.data("--compile", "--no-check", "--batch", batch, "train.py")
    assert code == 0, report
    assert (report["topology"], report["slices"]) == (topology, 1)
    assert (report["replicas"], report["batch_per_core"]) == (devices, 16)
    assert 0.95 * gib * GIB < report["available_bytes"] <= gib * GIB
    operations = {each["operation"] for each in report["collectives"]}
    assert "send" not in operations
    assert bool(operations) == (devices > 1)


def test_step_is_compiled_for_all_slices_together(command: RehearseCommand) -> None:
    write_stack(command, "type: v6e-16, slices: 2")
    code, report = command.data("--compile", "--no-check", "--batch", "512", "train.py")
    assert code == 0, report
    assert (report["type"], report["slices"], report["replicas"]) == ("v6e-16", 2, 32)
    collectives = {each["operation"]: each for each in report["collectives"]}
    # Each device sends the part of the gradient that it has summed in its slice, and the loss.
    part = 512 * 512 * 4 // 16
    assert part <= collectives["send"]["bytes"] < part + 1024


def test_libtpu_that_does_not_know_the_generation_is_refused(command: RehearseCommand) -> None:
    command.write("jax[tpu]==0.7.2\n", "requirements.txt")
    done = command.run("--compile", "--no-check", "--type", "tpu7x-8", "train.py")
    assert done.returncode == 65
    assert "libtpu 0.0.23, and libtpu 0.0.27 is the first that knows tpu7x" in done.stderr


def test_topology_that_the_compiler_does_not_know_is_refused(command: RehearseCommand) -> None:
    write_stack(command, "type: v5p-128, topology: 1x1x64")
    code, report = command.data("--compile", "--no-check", "--batch", "64", "train.py")
    assert code == 1
    assert report["refusal"]["origin"] == "compiler"
    assert "does not know v5p:1x1x64" in report["refusal"]["message"]
