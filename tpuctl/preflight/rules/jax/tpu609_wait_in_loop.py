"""TPU609 wait-in-loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

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
        "wait for the step, and the TPU then waits for Python. Results that are read every "
        "hundred steps cost nothing."
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
CLOCKS = ("time.", "timeit.")


def find(project: Project, target: Target) -> Iterator[Finding]:
    for loop_call in loop_calls(project):
        assignment = loop_call.assignment
        is_timed = any(
            (loop_call.module.names.called(part) or "").startswith(CLOCKS)
            for part in ast.walk(loop_call.loop)
        )
        if not loop_call.takes_gradients or assignment is None or is_timed:
            continue
        results = {
            part.id for target in assignment.targets for part in ast.walk(target)
            if isinstance(part, ast.Name)
        }  # fmt: skip
        yield from _waits(loop_call, assignment, results)


def _waits(loop_call: LoopCall, step: ast.stmt, results: set[str]) -> Iterator[Finding]:
    module, loop = loop_call.module, loop_call.loop
    for node in ast.walk(loop):
        if not isinstance(node, ast.Call) or node.lineno < step.lineno:
            continue
        value = _awaited(module, node)
        if value is None or _root_name(value) not in results:
            continue
        if loop_around(module, node) is loop and not is_in_branch(module, node, loop):
            message = f"{quoted(module, node)} waits for the step, in each iteration"
            hint = "Keep the array, and read it after some of the steps."
            yield finding_at(RULE, module, node, message, hint)


def _awaited(module: Module, node: ast.Call) -> ast.expr | None:
    """The array that a call waits for, if it waits for one."""
    if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS and not node.args:
        return node.func.value
    is_builtin = isinstance(node.func, ast.Name) and node.func.id in BUILTINS
    if node.args and (is_builtin or module.names.of(node.func) in FUNCTIONS):
        return node.args[0]
    return None


def _root_name(node: ast.expr) -> str:
    """The name that an expression such as `metrics["loss"].value` starts with."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
