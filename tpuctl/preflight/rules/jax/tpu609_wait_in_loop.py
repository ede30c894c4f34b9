"""TPU609 wait-in-loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from tpuctl.preflight.analysis.jax.compiled_functions import GRADIENTS
from tpuctl.preflight.analysis.jax.loops import LoopCall, loop_calls
from tpuctl.preflight.analysis.program.control_flow import is_in_branch, loop_around
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

LOOP = """\
from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.jit, donate_argnums=0)
def step(weights, x):
    loss, gradient = jax.value_and_grad(lambda weights: jnp.mean((x @ weights) ** 2))(weights)
    return weights - 0.1 * gradient, loss


weights = jnp.ones(8)
for number in range(1000):
    weights, loss = step(weights, jnp.ones((4, 8)))
"""

RULE = Rule(
    code="TPU609",
    name="wait-in-loop",
    severity=Severity.cost,
    summary="Training loop waits for the result of each step",
    rationale=(
        "JAX starts a step and returns at once, so that Python prepares the next batch while the "
        "TPU computes. `float(loss)`, `.item()`, `jax.device_get`, and `.block_until_ready()` "
        "wait for the step, and the TPU then waits for Python. So do printing a result, and a "
        "conditional on it. Results that are read every hundred steps cost nothing."
    ),
    bad=LOOP
    + """\
    print(float(loss))
""",
    good=LOOP
    + """\
    if number % 100 == 0:
        print(float(loss))
""",
)

BUILTINS = {"float", "int"}
METHODS = {"item", "block_until_ready", "tolist"}
FUNCTIONS = {"jax.device_get", "jax.block_until_ready", "numpy.asarray", "numpy.array"}
# That wait for what a benchmark measures.
BLOCKING = {"block_until_ready"}
LOGGING = ("logging.", "absl.logging.")
# Whose results are arrays that the step's results are a part of.
SELECTING = ("jax.numpy.", "flax.jax_utils.unreplicate")
VALUELESS = {"shape", "dtype", "ndim", "size", "sharding"}
STEPS = {"jax.lax.scan", "jax.lax.fori_loop", "jax.lax.while_loop"}
CLOCKS = ("time.", "timeit.")


def find(project: Project, target: Target) -> Iterator[Finding]:
    for loop_call in loop_calls(project):
        assignment = loop_call.assignment
        is_timed = any(
            (loop_call.module.names.called(part) or "").startswith(CLOCKS)
            for part in ast.walk(loop_call.loop)
        )
        if not loop_call.takes_gradients or assignment is None:
            continue
        if not _runs_many_steps(loop_call):
            yield from _waits(loop_call, assignment, is_timed=is_timed)


def _runs_many_steps(loop_call: LoopCall) -> bool:
    """Whether a compiled function loops over steps itself, so that few of its results are read."""
    reference = loop_call.compiled.reference
    if reference is None:
        return False
    nodes = reference.module.own_nodes(reference.function)
    names = {reference.module.names.called(node) or "" for node in nodes}
    return not names.isdisjoint(STEPS) and not any(name.endswith(GRADIENTS) for name in names)


def _waits(loop_call: LoopCall, step: ast.Assign, *, is_timed: bool) -> Iterator[Finding]:
    module, loop = loop_call.module, loop_call.loop
    results = _names(step.targets)
    nodes: list[Any] = [
        node for node in ast.walk(loop) if getattr(node, "lineno", 0) >= step.lineno
    ]
    for node in nodes:
        if isinstance(node, ast.Assign) and _root_name(module, node.value) in results:
            results |= _names(node.targets)
    awaited: set[str] = set()  # reading them again waits no longer
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        values = {_root_name(module, value) for value in _awaited(module, node)} & results
        is_measured = is_timed and isinstance(node, ast.Call) and _last(node.func) in BLOCKING
        if not values - awaited or is_measured:
            continue
        if loop_around(module, node) is loop and not is_in_branch(module, node, loop):
            awaited |= values
            message = f"{quoted(module, node)} waits for the step, in each iteration"
            hint = "Keep the array, and read it after some of the steps."
            yield finding_at(RULE, module, node, message, hint)


def _awaited(module: Module, node: ast.AST) -> list[ast.expr]:
    """The arrays that an expression waits for."""
    match node:
        case ast.FormattedValue(value=value):
            return [value]
        case ast.If(test=ast.Compare() as test) | ast.Assert(test=ast.Compare() as test):
            is_identity = isinstance(test.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn))
            return [] if is_identity else [test.left, *test.comparators]
        case ast.If(test=ast.Call(args=[value]) as test) if _is_of_jax(module, test):
            return [value]
        case ast.Call(func=ast.Attribute(value=value, attr=method), args=[]) if method in METHODS:
            return [value]
        case ast.Call(func=func, args=[first, *_]):
            name = module.names.of(func)
            is_printing = isinstance(func, ast.Name) and func.id == "print"
            if is_printing or (name or "").startswith(LOGGING):
                return node.args
            is_builtin = isinstance(func, ast.Name) and func.id in BUILTINS
            return [first] if is_builtin or name in FUNCTIONS else []
    return []


def _is_of_jax(module: Module, call: ast.Call) -> bool:
    return (module.names.of(call.func) or "").startswith(SELECTING)


def _root_name(module: Module, node: ast.expr) -> str:
    """The name that an array such as `metrics["loss"].value` or `jnp.mean(losses)` is made of."""
    while True:
        match node:
            case ast.Attribute(attr=attribute) if attribute in VALUELESS:
                return ""
            case ast.Attribute(value=value) | ast.Subscript(value=value):
                node = value
            case ast.Call(func=ast.Attribute(value=value)) if module.names.of(node.func) is None:
                node = value
            case ast.Call(args=[value, *_]) if _is_of_jax(module, node):
                node = value
            case _:
                return node.id if isinstance(node, ast.Name) else ""


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _names(targets: list[ast.expr]) -> set[str]:
    return {
        part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
    }
