"""TPU630 devices-of-one-process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.loops import loop_calls
from tpuctl.preflight.analysis.jax.meshes import MESHES, PMAPS
from tpuctl.preflight.analysis.jax.processes import resolved
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.distributed.initialize()


@partial(jax.jit, donate_argnums=0)
def step(weights):
    return weights - 0.1 * jax.grad(lambda weights: jnp.mean(weights**2))(weights)


"""
LOOP = """\
weights = jax.jit(jnp.ones, static_argnums=0, out_shardings=NamedSharding(mesh, P()))(8)
for number in range(1000):
    weights = step(weights)
"""

RULE = Rule(
    code="TPU630",
    name="devices-of-one-process",
    severity=Severity.risk,
    summary="Mesh of a slice with several workers has the devices of one worker alone",
    rationale=(
        "`jax.local_devices()` are the devices of this process. A mesh of these makes each worker "
        "train a model of its own on its part of the data: nothing fails, and gradients are never "
        "exchanged between workers. `jax.devices()` are those of all processes."
    ),
    bad=SCRIPT + 'mesh = Mesh(np.array(jax.local_devices()), ("data",))\n' + LOOP,
    good=SCRIPT + 'mesh = Mesh(np.array(jax.devices()), ("data",))\n' + LOOP,
    target=Target(workers=2),
)

# Whatever exchanges values between processes, or uses all devices, by another way.
OTHERS = {
    *("jax.devices", "jax.make_mesh", "jax.sharding.make_mesh", *PMAPS, "mpi4jax"),
    *("process_allgather", "broadcast_one_to_all", "create_device_mesh"),
    *("create_hybrid_device_mesh", "mpi4py"),
}


def find(project: Project, target: Target) -> Iterator[Finding]:
    if target.workers == 1 or not OTHERS.isdisjoint(project.used_names):
        return
    if target.workers is None and "jax.distributed.initialize" not in project.used_names:
        return
    if not any(loop_call.takes_gradients for loop_call in loop_calls(project)):
        return
    for module in project:
        for call in module.calls:
            devices = argument(call, 0, "devices")
            if module.names.of(call.func) not in MESHES or devices is None:
                continue
            where, value = resolved(project, module, devices)
            if _has_local_devices(where, value):
                message = f"{quoted(module, call)} leaves out the devices of other workers"
                yield finding_at(RULE, where, value, message, "Use jax.devices().")


def _has_local_devices(module: Module, node: ast.expr) -> bool:
    return any(module.names.called(part) == "jax.local_devices" for part in ast.walk(node))
