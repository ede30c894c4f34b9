"""TPU606 changing-static-argument."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.loops import LoopCall, counters_of, loop_calls
from tpuctl.preflight.analysis.program.control_flow import LOOPS, names_in
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU606",
    name="changing-static-argument",
    severity=Severity.cost,
    summary="Static argument of a compiled function changes in each iteration of a loop",
    rationale=(
        "A static argument is part of the compiled program, so JAX traces and compiles the "
        "function again for each of its values. A number that is not static is an array in the "
        "program, and may change."
    ),
    bad="""\
from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.jit, static_argnames="epoch")
def step(weights, epoch):
    return weights * 0.9**epoch


weights = jnp.ones(8)
for epoch in range(1000):
    weights = step(weights, epoch)
""",
    good="""\
import jax
import jax.numpy as jnp


@jax.jit
def step(weights, epoch):
    return weights * 0.9**epoch


weights = jnp.ones(8)
for epoch in range(1000):
    weights = step(weights, epoch)
""",
)


STRICT = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)


def find(project: Project, target: Target) -> Iterator[Finding]:
    for loop_call in loop_calls(project):
        for name, value in _static_arguments(loop_call):
            text = quoted(loop_call.module, value)
            if _changes(loop_call, value):
                message = f"`{name}` is a static argument, so each value of {text} compiles again"
                hint = f"Remove `{name}` from the static arguments of {loop_call.compiled.name}."
                yield finding_at(RULE, loop_call.module, value, message, hint)


def _changes(loop_call: LoopCall, value: ast.expr) -> bool:
    """Whether an expression has another value in each of many iterations."""
    counters = _counters(loop_call)
    assigned = [
        part.value
        for part in loop_call.loop.body
        if isinstance(part, ast.Assign) and [getattr(target, "id", "") for target in part.targets]
        == [getattr(value, "id", None)]
    ]  # fmt: skip
    if isinstance(value, ast.Name) and value.id not in counters and len(assigned) == 1:
        value = assigned[0]
    while True:
        match value:
            case ast.Name():
                return value.id in counters
            case ast.Call(func=ast.Name(id="int" | "float"), args=[value]):
                pass
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, STRICT):
                # The other side is the same in each iteration.
                sides = [side for side in (left, right) if names_in(side) & counters]
                if len(sides) != 1:
                    return False
                value = sides[0]
            case _:
                return False


def _static_arguments(loop_call: LoopCall) -> Iterator[tuple[str, ast.expr]]:
    static = loop_call.compiled.static or ()
    yield from ((name, value) for name, value in loop_call.arguments if name in static)


def _counters(loop_call: LoopCall) -> set[str]:
    """The counters of all loops around the call in its function."""
    names: set[str] = set()
    module = loop_call.module
    function = module.enclosing_function(loop_call.call)
    for ancestor in module.ancestors(loop_call.call):
        if ancestor is function:
            break
        if isinstance(ancestor, LOOPS):
            names |= counters_of(module, ancestor)
    return names
