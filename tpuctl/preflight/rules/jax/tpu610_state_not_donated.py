"""TPU610 state-not-donated."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.loops import LoopCall, loop_calls
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU610",
    name="state-not-donated",
    severity=Severity.cost,
    summary="Training step replaces its state, but does not donate the old one",
    rationale=(
        "While a step runs, the TPU's memory holds the parameters and the optimizer's state "
        "twice: as arguments and as results. `donate_argnums` lets XLA write the new state over "
        "the old one, which must not be used afterwards."
    ),
    bad="""\
import jax
import jax.numpy as jnp


@jax.jit
def step(weights, x):
    gradient = jax.grad(lambda weights: jnp.mean((x @ weights) ** 2))(weights)
    return weights - 0.1 * gradient


weights = jnp.ones(8)
for number in range(1000):
    weights = step(weights, jnp.ones((4, 8)))
""",
    good="""\
from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.jit, donate_argnums=0)
def step(weights, x):
    gradient = jax.grad(lambda weights: jnp.mean((x @ weights) ** 2))(weights)
    return weights - 0.1 * gradient


weights = jnp.ones(8)
for number in range(1000):
    weights = step(weights, jnp.ones((4, 8)))
""",
)

STEP_COMPILERS = ("jax.jit", "jax.pmap", "jax.experimental.pjit.pjit")


def find(project: Project, target: Target) -> Iterator[Finding]:
    reported = set()
    for loop_call in loop_calls(project):
        compiled, assignment = loop_call.compiled, loop_call.assignment
        has_option = any(
            keyword.arg is None or keyword.arg.startswith("donate") for keyword in compiled.keywords
        )
        if not loop_call.takes_gradients or compiled.name not in STEP_COMPILERS or has_option:
            continue
        replaced = _replaced(loop_call, assignment) if assignment is not None else []
        if replaced and compiled.reference not in reported:
            reported.add(compiled.reference)
            names = " and ".join(f"`{name}`" for _, name in replaced)
            positions = [number for number, _ in replaced]
            text = str(positions[0]) if len(positions) == 1 else str(tuple(positions))
            message = f"the step replaces {names}, but does not donate the old arrays"
            hint = f"Pass donate_argnums={text} to {compiled.name}."
            yield finding_at(RULE, loop_call.module, loop_call.call, message, hint)


def _replaced(loop_call: LoopCall, assignment: ast.Assign) -> list[tuple[int, str]]:
    """The positions and names of arguments that the call's results replace, unless the loop also
    gives the old arrays another name."""
    target = assignment.targets[0]
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    results = {part.id for part in parts if isinstance(part, ast.Name)}
    retained = {
        part.id
        for part in ast.walk(loop_call.loop)
        if isinstance(part, ast.Name) and _is_retained(loop_call.module, part)
    }
    compiled = loop_call.compiled
    return [
        (number, value.id)
        for number, value in enumerate(
            loop_call.call.args, compiled.is_method and compiled.is_decorated
        )
        if isinstance(value, ast.Name)
        and value.id in results - retained
        and not _is_small(value.id)
    ]


def _is_retained(module: Module, node: ast.Name) -> bool:
    """Whether a name's value gets another name, or becomes part of a list."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute):
        return node in parent.args and parent.func.attr in ("append", "put", "extend")
    is_assigned = isinstance(parent, ast.Assign) and parent.value is node
    return isinstance(node.ctx, ast.Load) and (
        is_assigned or isinstance(parent, (ast.Tuple, ast.List, ast.Dict))
    )


def _is_small(name: str) -> bool:
    """Whether it is most likely a key or a counter, which take no memory."""
    return any(word in name for word in ("key", "rng", "step", "loss"))
