"""TPU637 values-of-other-processes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.loops import compiled_of
from tpuctl.preflight.analysis.jax.processes import global_sharding
from tpuctl.preflight.analysis.program.control_flow import (
    is_in_branch,
    names_bound_in,
    statements_before,
)
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, is_conditional_on, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()), ("data",))
sharding = NamedSharding(mesh, P("data"))
part = np.full((8, 4), jax.process_index(), np.float32)
batch = jax.make_array_from_process_local_data(sharding, part)
"""

RULE = Rule(
    code="TPU637",
    name="values-of-other-processes",
    severity=Severity.error,
    summary="Process reads values of an array that are on the devices of other processes",
    rationale=(
        "An array that is split over the devices of all workers has a part on each, and a process "
        "reads its own alone: `np.asarray`, `jax.device_get` and `float` raise a RuntimeError "
        "(`spans non-addressable devices`). `process_allgather` brings all parts to every "
        "process; a value that is replicated, as by `out_shardings=NamedSharding(mesh, P())`, can "
        "be read anywhere. Without a stack, whose TPU may have one worker, these are risks."
    ),
    bad=SCRIPT + "print(np.asarray(batch).mean())\n",
    good=SCRIPT + "print(multihost_utils.process_allgather(batch, tiled=True).mean())\n",
    target=Target(workers=2),
)

# Functions that read the values of an argument, by its position.
READERS = {
    **dict.fromkeys(("numpy.asarray", "numpy.array", "jax.device_get"), 0),
    **dict.fromkeys(("float", "int", "bool"), 0),
    "numpy.save": 1,
}
METHODS = {"item", "tolist", "__array__"}
# Functions that split an array, by the position and the name of its sharding.
SPLITTING = {
    "jax.device_put": (1, "device"),
    "jax.make_array_from_process_local_data": (0, "sharding"),
    "jax.make_array_from_callback": (1, "sharding"),
}


def find(project: Project, target: Target) -> Iterator[Finding]:
    if target.workers == 1:
        return
    if target.workers is None and "jax.distributed.initialize" not in project.used_names:
        return
    for module in project:
        for call in module.calls:
            name = _read(module, call)
            if name is None or not _is_split(project, module, call, name.id):
                continue
            if is_conditional_on(module, call, ("count", "addressable")):
                continue
            message = f"{quoted(module, call)} reads an array that is split over all processes"
            is_sure = target.workers is not None and not is_in_branch(module, call, None)
            severity = None if is_sure else Severity.risk
            hint = (
                "Gather it in all processes first:\n"
                f"    multihost_utils.process_allgather({name.id}, tiled=True)"
            )
            yield finding_at(RULE, module, call, message, hint, severity=severity)


def _read(module: Module, call: ast.Call) -> ast.Name | None:
    """The name of the array whose values a call reads as a whole."""
    name = module.names.of(call.func) or getattr(call.func, "id", "")
    value = call.args[READERS[name]] if name in READERS and len(call.args) > READERS[name] else None
    if value is None and isinstance(call.func, ast.Attribute) and call.func.attr in METHODS:
        value = call.func.value
    return value if isinstance(value, ast.Name) else None


def _is_split(project: Project, module: Module, call: ast.Call, name: str) -> bool:
    """Whether a name certainly has an array of which each process holds another part."""
    for statement in statements_before(module, module.statement_of(call)):
        if name not in names_bound_in(statement):
            continue
        value = statement.value if isinstance(statement, ast.Assign) else None
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if not isinstance(value, ast.Call) or not isinstance(targets[0], ast.Name):
            return False
        where, sharding = module, None
        splitting = SPLITTING.get(module.names.of(value.func) or "")
        if splitting is not None:
            sharding = argument(value, *splitting)
        elif (compiled := compiled_of(project, module, value.func)) is not None:
            where, sharding = compiled.module, compiled.keyword("out_shardings")
        split = global_sharding(project, where, sharding)
        return split is not None and split.splits_processes
    return False
