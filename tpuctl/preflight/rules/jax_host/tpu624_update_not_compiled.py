"""TPU624 update-not-compiled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.inference import infer_jax
from tpuctl.preflight.analysis.jax.loops import LoopCall, compiled_of, loop_calls
from tpuctl.preflight.analysis.program.control_flow import names_bound_in, names_in
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU624",
    name="update-not-compiled",
    severity=Severity.cost,
    summary="Training loop updates the parameters outside of the compiled step",
    rationale=(
        "Outside of `jax.jit`, each operation of an update is a program of its own: Python starts "
        "several for every array of the model, and each writes its result to the TPU's memory. "
        "In the step, XLA makes one program of the gradient and the update."
    ),
    bad="""\
import jax
import jax.numpy as jnp

gradient_of = jax.jit(jax.grad(lambda weights, x: jnp.mean((x @ weights["w"]) ** 2)))
weights = {"w": jnp.ones(8)}
for number in range(1000):
    gradient = gradient_of(weights, jnp.ones((4, 8)))
    weights = jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient)
""",
    good="""\
from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.jit, donate_argnums=0)
def step(weights, x):
    gradient = jax.grad(lambda weights: jnp.mean((x @ weights["w"]) ** 2))(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient)


weights = {"w": jnp.ones(8)}
for number in range(1000):
    weights = step(weights, jnp.ones((4, 8)))
""",
)

MAPS = {"jax.tree.map", "jax.tree_util.tree_map", "jax.tree_map", "jax.tree_multimap"}
UPDATES = {"optax.apply_updates", *MAPS}


def find(project: Project, target: Target) -> Iterator[Finding]:
    for loop_call in loop_calls(project):
        gradient = _gradient(loop_call)
        if gradient:
            yield from _updates(project, loop_call, gradient)


def _gradient(loop_call: LoopCall) -> str:
    """The name of the gradient that a compiled function returns, by what it is called."""
    assignment = loop_call.assignment
    if not loop_call.takes_gradients or assignment is None:
        return ""
    names = names_bound_in(assignment)
    return next((name for name in sorted(names) if "grad" in name.lower()), "")


def _updates(project: Project, loop_call: LoopCall, gradient: str) -> Iterator[Finding]:
    """The first call in the loop that updates parameters by a gradient outside of a step."""
    module = loop_call.module
    if module.enclosing_function(loop_call.call) in infer_jax(project).contexts:
        return
    for call in module.calls:
        statement = module.statement_of(call)
        if loop_call.loop not in module.ancestors(call) or not isinstance(statement, ast.Assign):
            continue
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        names = {part.id for part in arguments if isinstance(part, ast.Name)}
        if gradient not in names or not names & names_bound_in(statement):
            continue
        if compiled_of(project, module, call.func) is None and _is_update(project, module, call):
            message = f"{quoted(module, call)} runs operation by operation, in each iteration"
            hint = "Update the parameters in the function that jax.jit compiles."
            yield finding_at(RULE, module, call, message, hint)
            return


def _is_update(project: Project, module: Module, call: ast.Call) -> bool:
    """Whether a call is an update of a library, or of a function that maps the arrays itself."""
    if module.names.of(call.func) in MAPS:
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr == "update":
        return "optax" in project.used_names and len(call.args) > 1
    function = function_of(project, module, call.func)
    if function is None:
        return False
    where, definition = function
    return any(
        where.names.called(node) in UPDATES and bool(names_in(node))
        for node in where.own_nodes(definition)
    )
