"""TPU632 arrays-kept."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.loops import LoopCall, loop_calls
from tpuctl.preflight.analysis.program.control_flow import is_in_branch, loop_around
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import dotted
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

STEP = """\
import jax
import jax.numpy as jnp


@jax.jit
def step(weights):
    return weights - 0.1 * jax.grad(lambda weights: jnp.mean(weights**2))(weights)


weights, history = jnp.ones(8), []
for number in range(1000):
    weights = step(weights)
"""

RULE = Rule(
    code="TPU632",
    name="arrays-kept",
    severity=Severity.cost,
    summary="Training loop keeps the parameters of every step in the TPU's memory",
    rationale=(
        "A list of arrays keeps them where they are: each step adds a copy of the parameters to "
        "the TPU's memory, until it is full. `jax.device_get` copies them to the host, and a "
        "running average needs only one copy."
    ),
    bad=STEP + "    history.append(weights)\n",
    good="from functools import partial\n\n"
    + STEP.replace("@jax.jit", "@partial(jax.jit, donate_argnums=0)")
    + """\
    if number % 100 == 0:
        history.append(jax.device_get(weights))
""",
)

COLLECTING = {"append", "insert", "add"}
EMPTYING = {"clear", "pop", "popleft", "deque", "maxlen"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    if not EMPTYING.isdisjoint(project.used_names):
        return
    reported = set()
    for loop_call in loop_calls(project):
        if not loop_call.takes_gradients:
            continue
        for call in _kept(loop_call):
            if call not in reported:
                reported.add(call)
                message = f"{quoted(loop_call.module, call)} keeps a copy of each step on the TPU"
                hint = "Copy what is needed to the host with jax.device_get, after some steps."
                yield finding_at(RULE, loop_call.module, call, message, hint)


def _kept(loop_call: LoopCall) -> Iterator[ast.Call]:
    """What collects, in each iteration, what a step replaces."""
    module, loop, assignment = loop_call.module, loop_call.loop, loop_call.assignment
    if assignment is None:
        return
    results = {dotted(part) for part in ast.walk(assignment.targets[0])} - {None}
    replaced = {dotted(value) for value in loop_call.call.args} & results
    for call in module.calls:
        if loop_around(module, call) is not loop or is_in_branch(module, call, loop):
            continue
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        is_kept = method in COLLECTING and call.args and dotted(call.args[-1]) in replaced
        if is_kept and not _is_emptied(module, call):
            yield call


def _is_emptied(module: Module, call: ast.Call) -> bool:
    """Whether the loop's function makes or shortens the list again, in a loop."""
    assert isinstance(call.func, ast.Attribute)
    name, function = dotted(call.func.value), module.enclosing_function(call)
    return name is None or any(
        any(dotted(target) == name for target in part.targets)
        and loop_around(module, part) is not None
        for part in module.of_types(ast.Assign, ast.Delete)
        if module.enclosing_function(part) is function
    )
