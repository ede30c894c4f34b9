"""TPU621 devices-of-all-processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.processes import resolved
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument, elements_of
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU621",
    name="devices-of-all-processes",
    severity=Severity.risk,
    summary="Data of one process is divided among the devices of all",
    rationale=(
        "`jax.devices()` and `jax.device_count()` are of all workers of a slice, and a process "
        "can put arrays only on its own: `jax.local_devices()`. `jax.pmap` takes an array whose "
        "first dimension is `jax.local_device_count()`; on one worker, both are the same."
    ),
    bad="""\
import jax
import numpy as np

step = jax.pmap(lambda x: x * 2)
batch = np.ones((64, 8))
print(step(batch.reshape(jax.device_count(), -1, 8)))
""",
    good="""\
import jax
import numpy as np

step = jax.pmap(lambda x: x * 2)
batch = np.ones((64, 8))
print(step(batch.reshape(jax.local_device_count(), -1, 8)))
""",
    target=Target(workers=2),
)

REPLICATING = {
    "jax.device_put_sharded": (1, "devices"),
    "jax.device_put_replicated": (1, "devices"),
    "jax.device_put": (1, "device"),
    "flax.jax_utils.replicate": (1, "devices"),
    "flax.jax_utils.prefetch_to_device": (2, "devices"),
}


def find(project: Project, target: Target) -> Iterator[Finding]:
    if target.workers == 1 or not {"devices", "device_count"} & project.used_names:
        return
    uses_pmap = "pmap" in project.used_names and "Mesh" not in project.used_names
    for module in project:
        for call in module.calls:
            name = module.names.of(call.func) or ""
            if name in REPLICATING:
                devices = argument(call, *REPLICATING[name])
                if devices is not None and _are_all_devices(project, module, devices):
                    message = f"{quoted(module, devices)} may be of another process"
                    yield finding_at(RULE, module, devices, message, "Use jax.local_devices().")
            elif uses_pmap and (size := _first_size(project, module, call)) is not None:
                message = f"{quoted(module, size)} counts the devices of all processes"
                hint = "Use jax.local_device_count(), for the part of this process."
                yield finding_at(RULE, module, size, message, hint)


def _are_all_devices(project: Project, module: Module, node: ast.expr) -> bool:
    where, value = resolved(project, module, node)
    while isinstance(value, ast.Subscript):
        where, value = resolved(project, where, value.value)
    is_call = isinstance(value, ast.Call) and not value.args and not value.keywords
    return is_call and where.names.called(value) == "jax.devices"


def _first_size(project: Project, module: Module, call: ast.Call) -> ast.expr | None:
    """The first dimension of a reshaped array, if it counts the devices of all processes."""
    name = module.names.of(call.func)
    if name in ("numpy.reshape", "jax.numpy.reshape"):
        array, sizes = argument(call, 0, "a"), elements_of(argument(call, 1, "shape"))
    elif name is None and isinstance(call.func, ast.Attribute) and call.func.attr == "reshape":
        array, sizes = call.func.value, [size for part in call.args for size in elements_of(part)]
    else:
        return None
    if not sizes or array is None or _holds_devices(project, module, array):
        return None
    first = sizes[0]
    while isinstance(first, ast.BinOp) and isinstance(first.op, ast.Add):
        first = (elements_of(first.left) or [first.left])[0]  # `(count, -1) + x.shape[1:]`
    return first if _counts_all(project, module, first) else None


def _counts_all(project: Project, module: Module, node: ast.expr) -> bool:
    where, value = resolved(project, module, node)
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Name) and value.func.id == "len" and value.args:
        return _are_all_devices(project, where, value.args[0])
    return where.names.of(value.func) == "jax.device_count" and not value.args


def _holds_devices(project: Project, module: Module, node: ast.expr) -> bool:
    where, value = resolved(project, module, node)
    return any("devices" in (where.names.called(part) or "") for part in ast.walk(value))
