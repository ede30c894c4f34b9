"""TPU613 process-local-data."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.loops import compiled_of, loop_calls
from tpuctl.preflight.analysis.jax.processes import (
    DISTRIBUTES,
    Sameness,
    compare,
    global_sharding,
    is_numpy,
)
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("data",))
sharding = NamedSharding(mesh, P("data"))
rng = np.random.default_rng(jax.process_index())
part = rng.normal(size=(8, 4))
"""

RULE = Rule(
    code="TPU613",
    name="process-local-data",
    severity=Severity.error,
    summary="Processes of a slice pass their own data to JAX as if all passed the same",
    rationale=(
        "On a slice with several workers, each worker runs the script, and each loads data. "
        "`jax.device_put` expects the whole array from every process and raises an AssertionError "
        "if the arrays differ. `in_shardings` that split an array raise a ValueError for NumPy "
        "arrays. `jax.make_array_from_process_local_data` makes an array of the parts that the "
        "processes loaded: they train on copies of one part if all load the same. An array "
        "without a sharding stays on one device of its process, so that each worker trains a "
        "model of its own. Without a stack, whose TPU may have one worker, these are risks."
    ),
    bad=SCRIPT
    + """\
batch = jax.device_put(part, sharding)
print(batch.shape)
""",
    good=SCRIPT
    + """\
batch = jax.make_array_from_process_local_data(sharding, part)
print(batch.shape)
""",
    target=Target(workers=2),
)

LOCAL_DATA = "jax.make_array_from_process_local_data"
USE_LOCAL_DATA = f"Use {LOCAL_DATA}(sharding, part), with the part of this process."


def find(project: Project, target: Target) -> Iterator[Finding]:
    if target.workers == 1:
        return
    if target.workers is None and not any(_initializes(module) for module in project):
        return
    severity = Severity.error if target.workers is not None else Severity.risk
    if not project.uses_name(DISTRIBUTES):
        yield from _alone(project)
        return
    for module in project:
        for call in module.calls:
            name = module.names.of(call.func)
            if name == "jax.device_put":
                yield from _put(project, module, call, severity)
            elif name == LOCAL_DATA:
                yield from _same_part(project, module, call)
            elif "in_shardings" in project.used_names:
                yield from _split_by_step(project, module, call, severity)


def _initializes(module: Module) -> bool:
    return any(module.names.of(call.func) == "jax.distributed.initialize" for call in module.calls)


def _alone(project: Project) -> Iterator[Finding]:
    """Training steps of a script that distributes nothing."""
    for loop_call in loop_calls(project):
        if loop_call.takes_gradients:
            step = quoted(loop_call.module, loop_call.call)
            message = f"{step} runs on one device of each worker, and each trains its own model"
            hint = (
                f"Split the batch over all devices: {LOCAL_DATA}(NamedSharding(mesh, "
                'P("data")), part).'
            )
            yield finding_at(
                RULE, loop_call.module, loop_call.call, message, hint, severity=Severity.risk
            )


def _put(project: Project, module: Module, call: ast.Call, severity: Severity) -> Iterator[Finding]:
    if global_sharding(project, module, argument(call, 1, "device")) is None:
        return
    if compare(project, module, argument(call, 0, "x")) is Sameness.DIFFERENT:
        message = f"{quoted(module, call)} fails: each process passes another array"
        yield finding_at(RULE, module, call, message, USE_LOCAL_DATA, severity=severity)


def _same_part(project: Project, module: Module, call: ast.Call) -> Iterator[Finding]:
    sharding = global_sharding(project, module, argument(call, 0, "sharding"))
    is_split = sharding is not None and sharding.splits_processes
    if not is_split or argument(call, 2, "global_shape") is not None:
        return
    part = argument(call, 1, "local_data")
    if part is not None and compare(project, module, part) is Sameness.SAME:
        message = f"{quoted(module, part)} is the same in all processes, so the batch repeats it"
        hint = "Load or select the part of this process by jax.process_index()."
        yield finding_at(RULE, module, call, message, hint, severity=Severity.risk)


def _split_by_step(
    project: Project, module: Module, call: ast.Call, severity: Severity
) -> Iterator[Finding]:
    """Arrays of NumPy that the shardings of a compiled function split."""
    compiled = compiled_of(project, module, call.func)
    shardings = None if compiled is None else compiled.keyword("in_shardings")
    if compiled is None or shardings is None:
        return
    parameters = [shardings] * len(call.args)
    if isinstance(shardings, (ast.Tuple, ast.List)):
        parameters = shardings.elts
    for passed, expected in zip(call.args, parameters, strict=False):
        sharding = global_sharding(project, compiled.module, expected)
        is_split = sharding is not None and sharding.splits_processes
        if is_split and is_numpy(project, module, passed):
            array = quoted(module, passed)
            message = f"{array} is a NumPy array, which JAX does not split among processes"
            yield finding_at(RULE, module, passed, message, USE_LOCAL_DATA, severity=severity)
