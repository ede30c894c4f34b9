"""TPU638 steps-differ-by-process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.collectives import need_of_all
from tpuctl.preflight.analysis.jax.processes import Sameness, compare
from tpuctl.preflight.analysis.program.control_flow import Loop, loop_around
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

SCRIPT = """\
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()), ("data",))
sharding = NamedSharding(mesh, P("data"))
mean = jax.jit(jnp.mean, out_shardings=NamedSharding(mesh, P()))
part = np.full((8, 4), jax.process_index(), np.float32)
start = time.time()
for step in range(1000):
    value = mean(jax.make_array_from_process_local_data(sharding, part))
"""

RULE = Rule(
    code="TPU638",
    name="steps-differ-by-process",
    severity=Severity.risk,
    summary="Processes of a slice may run different numbers of steps",
    rationale=(
        "A step over the devices of all processes waits for all of them. If a process leaves the "
        "loop, or skips a batch, by its own clock or its own data, the others wait for it forever. "
        "Let one process decide, and tell the others: `broadcast_one_to_all`, or a number of steps "
        "that all compute alike."
    ),
    bad=SCRIPT
    + """\
    if time.time() - start > 3600:
        break
""",
    good=SCRIPT
    + """\
    is_late = time.time() - start > 3600
    if multihost_utils.broadcast_one_to_all(is_late):
        break
""",
    target=Target(workers=2),
)

CLOCKS = {f"time.{name}" for name in ("time", "monotonic", "perf_counter")}
CLOCKS |= {"datetime.datetime.now", "datetime.datetime.utcnow"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    if target.workers == 1:
        return
    if target.workers is None and "jax.distributed.initialize" not in project.used_names:
        return
    for module in project:
        for exit_ in module.of_types(ast.Break, ast.Return, ast.Continue):
            conditional, loop = module.parents[exit_], loop_around(module, exit_)
            if not isinstance(conditional, ast.If) or exit_ not in conditional.body:
                continue
            if loop is None or not _decides_on_steps(project, module, exit_, loop):
                continue
            reason = _own_value(project, module, conditional.test)
            if reason:
                message = f"{quoted(module, conditional.test)} depends on {reason}"
                hint = (
                    "Decide for all: multihost_utils.broadcast_one_to_all(…), or process_allgather."
                )
                yield finding_at(RULE, module, conditional, message, hint)


def _decides_on_steps(project: Project, module: Module, exit_: ast.stmt, loop: Loop) -> bool:
    """Whether it depends on a statement how many steps of all processes this one runs."""
    if _has_step(project, module, loop):
        is_continue = isinstance(exit_, ast.Continue)
        return not is_continue or _has_step(project, module, loop, after=exit_.lineno)
    function = module.enclosing_function(loop)
    if function is None or not any(isinstance(part, ast.Yield) for part in ast.walk(loop)):
        return False
    return any(
        _has_step(project, where, other)
        for where in project
        for other in where.of_types(ast.For)
        if _iterates(project, where, other.iter, function)
    )


def _has_step(project: Project, module: Module, node: ast.AST, after: int = 0) -> bool:
    return any(
        isinstance(part, ast.Call)
        and part.lineno > after
        and (need_of_all(project, module, part) or "").startswith("runs")
        for part in ast.walk(node)
    )


def _iterates(project: Project, module: Module, node: ast.expr, generator: ast.AST) -> bool:
    """Whether a loop has as many iterations as a generator has elements."""
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    return any(
        definition is not None and definition[1] is generator
        for definition in (function_of(project, module, call.func) for call in calls)
    )


def _own_value(project: Project, module: Module, test: ast.expr) -> str:
    """What a process alone knows, and a conditional depends on; "" if it is not known."""
    if compare(project, module, test) is Sameness.DIFFERENT:
        return "the data of this process"
    for part in test.values if isinstance(test, ast.BoolOp) else [test]:
        value = part
        if isinstance(part, ast.Name):
            values = HostCode.of(project).assigned_values(module, part)
            if len(values) != 1 or values[0] is None:
                continue
            value = values[0]
        if isinstance(value, ast.Compare) and _reads_clock(module, value):
            return "the clock of this process"
    return ""


def _reads_clock(module: Module, test: ast.Compare) -> bool:
    called = [module.names.called(part) for part in ast.walk(test) if isinstance(part, ast.Call)]
    return not CLOCKS.isdisjoint(called) and all(name in CLOCKS for name in called)
