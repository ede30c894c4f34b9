"""TPU617 initialized-late."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.callers import calls_of
from tpuctl.preflight.analysis.program.control_flow import (
    is_in_branch,
    is_main_guard,
    statements_before,
)
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import NESTED, parts_of
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU617",
    name="initialized-late",
    severity=Severity.error,
    summary="`jax.distributed.initialize` is called after JAX has started",
    rationale=(
        "The first call that needs a device, such as `jax.devices()`, `jax.process_index()` or "
        "`jax.random.key(0)`, starts JAX on this process alone. `jax.distributed.initialize()` "
        "afterwards raises a RuntimeError. Code at the top of an imported module runs before the "
        "script's own."
    ),
    bad="""\
import jax

print(jax.devices())
jax.distributed.initialize()
""",
    good="""\
import jax

jax.distributed.initialize()
print(jax.devices())
""",
)

INITIALIZE = "jax.distributed.initialize"
STARTING = {
    *(
        f"jax.{name}"
        for name in (
            *("devices", "local_devices", "device_count", "local_device_count", "process_index"),
            *("process_count", "default_backend", "device_put", "make_mesh"),
        )
    ),
    "jax.experimental.mesh_utils.create_device_mesh",
    *(f"jax.numpy.{name}" for name in ("array", "asarray", "zeros", "ones", "arange", "full")),
    *(f"jax.random.{name}" for name in ("key", "PRNGKey", "normal", "uniform", "split")),
}
MAX_CALLS = 3  # functions one within the other


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module in project:
        for call in module.calls:
            if module.names.of(call.func) != INITIALIZE or _is_tried(module, call):
                continue
            earlier = next(_before(project, module, call, MAX_CALLS), None) or next(
                _imported(project, module), None
            )
            if earlier is None:
                continue
            where, node = earlier
            place = "" if where is module else f" of {where.path.name}"
            text = f"{quoted(where, node)} in line {node.lineno}{place}"
            message = f"{text} has started JAX before, so {INITIALIZE} raises an error"
            hint = f"Call {INITIALIZE}() first, and all that needs devices in functions after it."
            is_certain = not is_in_branch(where, node, None)
            severity = Severity.error if is_certain else Severity.risk
            yield finding_at(RULE, module, call, message, hint, severity=severity)


def _is_tried(module: Module, call: ast.Call) -> bool:
    return any(isinstance(part, ast.Try) for part in module.ancestors(call))


def _before(
    project: Project, module: Module, node: ast.Call, depth: int
) -> Iterator[tuple[Module, ast.Call]]:
    """What starts JAX before a call, in its function or in those that call it."""
    for statement in statements_before(module, module.statement_of(node)):
        yield from _starting(project, module, statement, MAX_CALLS)
    function = module.enclosing_function(node)
    if function is None or not depth:
        return
    calls, is_complete = calls_of(project, module, function)
    if is_complete and len(calls) == 1:
        yield from _before(project, *calls[0], depth - 1)


def _starting(
    project: Project, module: Module, node: ast.AST, depth: int
) -> Iterator[tuple[Module, ast.Call]]:
    """The calls in a statement that start JAX, also in functions that it calls."""
    if isinstance(node, NESTED):
        return
    if isinstance(node, ast.Call):
        name = module.names.of(node.func)
        if name in STARTING:
            yield module, node
        function = function_of(project, module, node.func) if depth and name != INITIALIZE else None
        for part in getattr(function[1], "body", []) if function is not None else ():
            if isinstance(part, ast.stmt):
                assert function is not None
                yield from _starting(project, function[0], part, depth - 1)
    for part in parts_of(node):
        yield from _starting(project, module, part, depth)


def _imported(project: Project, module: Module) -> Iterator[tuple[Module, ast.Call]]:
    """What starts JAX while the imports run of a script that uses a module."""
    imported = {
        other: None  # once, in order: scripts share most of what they import
        for script, modules in project.programs.items()
        if module in modules
        for other in modules
        if other is not script
    }
    for other in imported:
        if STARTING.isdisjoint(other.used_names[0]):
            continue
        for statement in other.tree.body:
            if not is_main_guard(statement):
                yield from _starting(project, other, statement, 0)
