"""TPU607 changing-shape."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.loops import LoopCall, counters_of, loop_calls
from tpuctl.preflight.analysis.program.control_flow import names_in
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.program.syntax import elements_of
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU607",
    name="changing-shape",
    severity=Severity.cost,
    summary="Compiled function is called with an array that grows or shrinks in a loop",
    rationale=(
        "XLA compiles a program for fixed shapes, so JAX traces and compiles the function again "
        "for each length of a slice, or of an array that the loop appends to. With the whole "
        "array, and the length as an array that masks the rest, it is compiled once."
    ),
    bad="""\
import jax
import jax.numpy as jnp


@jax.jit
def score(tokens):
    return jnp.sum(tokens**2)


tokens = jnp.ones(512)
for length in range(1, 512):
    print(score(tokens[:length]))
""",
    good="""\
import jax
import jax.numpy as jnp


@jax.jit
def score(tokens, length):
    return jnp.sum(tokens**2, where=jnp.arange(tokens.size) < length)


tokens = jnp.ones(512)
for length in range(1, 512):
    print(score(tokens, length))
""",
)


JOINING = {"concatenate", "append", "hstack", "vstack"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    for loop_call in loop_calls(project):
        counters = counters_of(loop_call.module, loop_call.loop)
        values = [*loop_call.call.args, *(keyword.value for keyword in loop_call.call.keywords)]
        for value in values:
            name = _changing_bound(value, counters)
            if name:
                text = quoted(loop_call.module, value)
                message = f"{text} has another shape for each `{name}`, which compiles again"
                hint = "Pass the whole array and the length, and mask the rest."
                yield finding_at(RULE, loop_call.module, value, message, hint)
            elif isinstance(value, ast.Name) and _grows(loop_call, value.id):
                message = f"`{value.id}` is longer in each iteration, which compiles again"
                hint = f"Make an array of the final length, and fill it: {value.id}.at[…].set(…)."
                yield finding_at(RULE, loop_call.module, value, message, hint)


def _grows(loop_call: LoopCall, name: str) -> bool:
    """Whether each iteration of the loop appends to an array, and nothing else replaces it."""
    module, loop = loop_call.module, loop_call.loop
    values = [
        part.value
        for part in loop.body
        if isinstance(part, ast.Assign) and [*map(_name, part.targets)] == [name]
    ]
    bindings = [
        part
        for part in ast.walk(loop)
        if isinstance(part, ast.Name) and part.id == name and not isinstance(part.ctx, ast.Load)
    ]
    if len(values) != 1 or len(bindings) != 1 or not isinstance(values[0], ast.Call):
        return False
    library, _, function = (module.names.of(values[0].func) or "").rpartition(".")
    joined = values[0].args[0] if values[0].args else None
    is_sequence = isinstance(joined, (ast.List, ast.Tuple)) or function == "append"
    return (
        library in ("jax.numpy", "numpy")
        and function in JOINING
        and is_sequence
        and name in map(_name, elements_of(joined))
    )


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _changing_bound(node: ast.expr, counters: set[str]) -> str:
    """The counter that exactly one bound of a slice depends on; "" if there is none."""
    if not isinstance(node, ast.Subscript):
        return ""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for part in parts:
        if isinstance(part, ast.Slice) and part.step is None:
            bounds = [bound for bound in (part.lower, part.upper) if bound is not None]
            changing = [counters & names_in(bound) for bound in bounds]
            fixed = [bound for bound, names in zip(bounds, changing, strict=True) if not names]
            is_fixed = all(isinstance(bound, ast.Constant) for bound in fixed)
            if len(fixed) == len(bounds) - 1 and is_fixed:
                return min(set().union(*changing))
    return ""
