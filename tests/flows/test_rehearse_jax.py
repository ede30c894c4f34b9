"""Rehearsals and compilations of JAX scripts, with the real JAX and the TPU compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.flows.test_rehearse import RehearseCommand, finding_of
from tpuctl.api import Tpuctl
from tpuctl.interpreters import current

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]  # installs JAX once

REQUIREMENTS = "jax[tpu]==0.10.2\norbax-checkpoint==0.12.8\ngcsfs\n"
# Trains on all devices, saves, stops when it is preempted, and resumes.
CLEAN = """
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.distributed.initialize()
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
mesh = Mesh(np.array(jax.devices("tpu")), ("data",))
split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
manager = ocp.CheckpointManager(
    os.environ["TPUCTL_OUTPUT"] + "/checkpoints",
    options=ocp.CheckpointManagerOptions(save_interval_steps=2, max_to_keep=2),
)


@jax.jit
def train_step(state, batch):
    def loss_of(weights):
        return jnp.mean((batch["inputs"] @ weights - batch["targets"]) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(state["weights"])
    return {"weights": state["weights"] - 0.1 * gradient}, loss


state = jax.device_put({"weights": jnp.zeros((16, 4))}, whole)
start = manager.latest_step() or 0
if start:
    state = manager.restore(start, args=ocp.args.StandardRestore(state))
inputs = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)
batch = jax.device_put({"inputs": inputs, "targets": inputs[:, :4]}, split)
for step in range(start + 1, 1000):
    state, loss = train_step(state, batch)
    manager.save(step, args=ocp.args.StandardSave(state))
    if stopping:
        break
    if step % 100 == 0:
        print("step", step, "loss", float(loss))
manager.wait_until_finished()
"""
# Batches of three sizes, a loss that is read after every step and becomes NaN, one device of four,
# and weights that are saved on the machine's disk only.
CARELESS = """
import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def train_step(weights, inputs, rate):
    def loss_of(weights):
        return jnp.mean((inputs @ weights) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(weights)
    jax.debug.print("loss {}", loss)
    return weights - rate * gradient, loss


weights = jnp.ones((16, 4))
for step in range(1000):
    inputs = np.ones((8 + 4 * (step % 3), 16), np.float32)
    weights, loss = train_step(weights, inputs, np.float32("nan" if step == 4 else 0.001))
    print("loss", float(loss))
    np.save("weights.npy", weights)
"""
FAILING = """
import jax
import jax.numpy as jnp


@jax.jit
def train_step(weights):
    if weights.sum() > 0:
        weights = weights - 1
    return weights


train_step(jnp.ones(3))
"""
# No gradients: calls of the function that is called most often are the steps.
INFERENCE = """
import jax
import jax.numpy as jnp

prepare = jax.jit(lambda values: values + 1)
generate = jax.jit(lambda values: values * 2)
values = prepare(jnp.ones(4))
for _ in range(1000):
    values = generate(values)
"""
# Four layers of 512 x 512 with biases, and Adam's two moments, on four devices.
COMPILED = """
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh = Mesh(np.array(jax.devices()), ("data",))
split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
layers = [{"weights": jnp.zeros((512, 512)), "bias": jnp.zeros(512)} for _ in range(4)]
state = jax.device_put({"layers": layers, "first": layers, "second": layers}, whole)


@functools.partial(jax.jit, donate_argnums=0)
def train_step(state, batch, key):
    def loss_of(layers):
        hidden = batch["inputs"] + jax.random.normal(key, (512,))
        for layer in layers:
            hidden = jnp.tanh(hidden @ layer["weights"] + layer["bias"])
        return jnp.mean((hidden - batch["targets"]) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(state["layers"])
    average = lambda old, new: jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, old, new)
    first = average(state["first"], gradient)
    second = average(state["second"], jax.tree.map(jnp.square, gradient))
    change = jax.tree.map(lambda a, b: a / (jnp.sqrt(b) + 1e-8), first, second)
    layers = jax.tree.map(lambda a, b: a - 0.01 * b, state["layers"], change)
    return {"layers": layers, "first": first, "second": second}, loss


zeros = jax.device_put(np.zeros((32, 512), np.float32), split)
train_step(state, {"inputs": zeros, "targets": zeros}, jax.random.key(0))
print("not reached")
"""
REFUSED = """
import jax
import jax.numpy as jnp


@jax.jit
def train_step(weights, batch):
    def loss_of(weights):
        return jnp.mean(jnp.abs(batch @ weights))

    value, gradient = jax.value_and_grad(loss_of)(weights)
    return weights - gradient, jnp.abs(jnp.linalg.eigvals(batch @ weights)).sum()


train_step(jnp.ones((8, 8)), jnp.ones((8, 8)))
"""
CALLBACK = """
import jax
import jax.numpy as jnp


@jax.jit
def train_step(weights):
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    value, gradient = jax.value_and_grad(lambda weights: jnp.mean(weights**2))(weights)
    jax.debug.print("loss {}", value)
    return weights - jax.pure_callback(lambda rate: rate, scalar, jnp.float32(0.1)) * gradient


train_step(jnp.ones(8))
"""


@pytest.fixture
def command(make_stack: Callable[..., Tpuctl]) -> RehearseCommand:
    stack = make_stack(type_name="v5litepod-4", zone="us-central1-a", runtime="v2-alpha-tpuv5-lite")
    command = RehearseCommand(stack)
    command.write(REQUIREMENTS, "requirements.txt")
    command.write(current().minor, ".python-version")  # the image's has no such JAX
    return command


def problems_of(data: Any) -> dict[str, str]:
    """The severity of each problem by topic."""
    severities = ("error", "cost", "risk")
    return {
        finding["topic"]: finding["severity"]
        for finding in data["findings"]
        if finding["severity"] in severities
    }


def test_clean_script_resumes_on_all_devices_without_findings(command: RehearseCommand) -> None:
    command.write(CLEAN)
    code, data = command.data("train.py")
    # How long steps wait for data depends on what else runs here.
    assert (code, problems_of(data).keys() - {"data"}) == (0, set()), data["findings"]
    assert data["measured"]["jax"] == "0.10.2"
    assert data["measured"]["steps"] == 8
    assert data["measured"]["examples"] == 32
    [function] = data["measured"]["functions"]
    assert (function["function"], function["compilations"]) == ("train_step", 1)
    assert function["peak_bytes"] > 0
    assert finding_of(data, "replicas")["message"] == "the step runs on 4 devices"
    assert "resumes" in finding_of(data, "checkpoint")["message"]


def test_careless_script_has_each_finding_at_its_line(command: RehearseCommand) -> None:
    command.write(CARELESS)
    code, data = command.data("train.py")
    assert code == 1
    expected = {
        "shapes": "cost",
        "transfers": "cost",
        "loss": "error",
        "replicas": "cost",
        "checkpoint": "risk",
    }
    problems = problems_of(data)
    assert problems | {"data": "cost"} == expected | {"data": "cost"}
    shapes = finding_of(data, "shapes")
    assert "compiled 3 times" in shapes["message"]
    assert "the batch of inputs is 8, 12, 16" in shapes["message"]
    lines = CARELESS.splitlines()
    reads = [finding for finding in data["findings"] if finding["topic"] == "transfers"]
    assert [lines[read["line"] - 1].split("(")[0].strip() for read in reads] == [
        "print",
        "jax.debug.print",
    ]
    assert finding_of(data, "loss")["message"] == "is nan at step 6"
    assert finding_of(data, "checkpoint")["detail"].endswith("/weights.npy")


def test_exception_is_reported_with_its_line(command: RehearseCommand) -> None:
    command.write(FAILING)
    code, data = command.data("--no-check", "train.py")
    assert code == 1
    finding = finding_of(data, "script")
    assert finding["severity"] == "error"
    assert "TracerBoolConversionError" in finding["message"]
    assert FAILING.splitlines()[finding["line"] - 1].strip() == "if weights.sum() > 0:"


def test_without_gradients_most_frequent_function_is_the_step(command: RehearseCommand) -> None:
    command.write(INFERENCE)
    code, data = command.data("--steps", "2", "train.py")
    assert code == 0
    assert data["measured"]["steps"] == 2
    assert "no compiled function computes gradients" in finding_of(data, "compiling")["message"]


def test_step_is_compiled_for_the_topology(command: RehearseCommand) -> None:
    command.write(COMPILED)
    code, report = command.data("--compile", "--batch", "128", "train.py")
    assert code == 0, report
    assert (report["function"], report["jax"], report["tensorflow"]) == (
        *("train_step", "0.10.2"),
        None,
    )
    assert (report["replicas"], report["batch_per_core"], report["batch"]) == (4, 32, 128)
    assert report["variable_bytes"] == 3 * 4 * 4 * (512 * 512 + 512)
    # The state is donated: its new values take no memory of their own.
    sizes = report["requested"]["sizes"]
    assert sizes["shared"] >= report["variable_bytes"]
    assert report["variable_bytes"] < report["requested"]["peak"] < report["available_bytes"]
    assert 15 << 30 < report["available_bytes"] <= 16 << 30
    # The gradients of all layers, and the loss.
    [collective] = report["collectives"]
    assert collective["operation"] == "all-reduce"
    assert collective["bytes"] >= 4 * 4 * (512 * 512 + 512)


def test_step_that_does_not_fit_reports_compiler_numbers(command: RehearseCommand) -> None:
    command.write(COMPILED)
    code, report = command.data("--compile", "--batch", str(1 << 26), "train.py")
    assert code == 1
    assert report["requested"]["sizes"] is None
    assert report["requested"]["shortfall"].endswith("G of 15.75G")
    assert "RESOURCE_EXHAUSTED" in report["requested"]["compiler_message"]


def test_operation_without_tpu_support_is_reported_with_its_line(
    command: RehearseCommand,
) -> None:
    command.write(REFUSED)
    code, report = command.data("--compile", "--no-check", "train.py")
    assert code == 1
    assert report["refusal"]["origin"] == "compiler"
    [obstacle] = report["refusal"]["obstacles"]
    assert obstacle["operation"] == "eig"
    assert obstacle["where"]["text"].startswith("return weights - gradient")


def test_callback_is_not_the_compilers_refusal(command: RehearseCommand) -> None:
    command.write(CALLBACK)
    code, report = command.data("--compile", "--no-check", "train.py")
    assert code == 1
    refusal = report["refusal"]
    assert refusal["origin"] == "tpuctl"
    assert refusal["message"].startswith("jax.pure_callback ")
    assert "pure_callback" in refusal["where"]["text"]


# Process 0 alone waits for the others after a step.
BARRIER = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()), ("data",))
split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
rows = np.ones((32 // jax.process_count(), 16), np.float32)
batch = jax.make_array_from_process_local_data(split, rows)
weights = jax.device_put(jnp.ones((16, 4)), whole)


@jax.jit
def train_step(weights, batch):
    loss, gradient = jax.value_and_grad(lambda weights: jnp.mean((batch @ weights) ** 2))(weights)
    return weights - 0.1 * gradient, loss


for step in range(100):
    weights, loss = train_step(weights, batch)
    if jax.process_index() == 0:
        multihost_utils.sync_global_devices("saved")
"""


def test_slice_is_rehearsed_in_a_process_for_each_worker(
    make_stack: Callable[..., Tpuctl],
) -> None:
    runtime = "v2-alpha-tpuv5-lite"
    stack = make_stack(type_name="v5litepod-16", zone="us-central1-a", runtime=runtime)
    command = RehearseCommand(stack)
    command.write("jax[tpu]==0.10.2\n", "requirements.txt")
    command.write(current().minor, ".python-version")
    command.write(BARRIER)
    code, data = command.data("--no-check", "train.py")
    assert code == 1
    finding = finding_of(data, "processes")
    assert finding["severity"] == "error"
    assert "process 0 of 4 waits in sync_global_devices" in finding["message"]
    assert BARRIER.splitlines()[finding["line"] - 1].strip().startswith("multihost_utils.sync")
    command.write(BARRIER.replace("    if jax.process_index() == 0:\n    ", ""))
    code, data = command.data("--no-check", "train.py")
    assert code == 0, data["findings"]
    message = finding_of(data, "processes")["message"]
    assert "4 processes of 4 devices each ran together" in message
    assert "32 examples in all, 8 in each" in message
