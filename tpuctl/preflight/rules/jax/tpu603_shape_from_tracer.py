"""TPU603 shape-from-tracer."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.inference import JaxInference, infer_jax
from tpuctl.preflight.analysis.jax.library import array_function
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument, elements_of
from tpuctl.preflight.analysis.source_findings import quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import failure

RULE = Rule(
    code="TPU603",
    name="shape-from-tracer",
    severity=Severity.error,
    summary="Shape or slice computed from an array in a function that JAX compiles",
    rationale=(
        "XLA compiles a program for fixed shapes, so JAX must know each shape while it traces the "
        "function. A shape or a slice that depends on an array raises a TypeError, an IndexError, "
        "or a ConcretizationTypeError. Sizes taken from `x.shape`, and static arguments, are "
        "known."
    ),
    bad="""\
import jax
import jax.numpy as jnp


@jax.jit
def first(x, count):
    return x[:count]


first(jnp.ones(8), 4)
""",
    good="""\
from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.jit, static_argnames="count")
def first(x, count):
    return x[:count]


first(jnp.ones(8), count=4)
""",
)

STATIC = (
    "If it has few values, make it a static argument: each value compiles once. Otherwise, keep "
    "the full size and mask the rest."
)
DYNAMIC_SLICE = "For a slice of a fixed length, use jax.lax.dynamic_slice_in_dim.\n" + STATIC
# The positions and names of arguments that determine the shape of the result.
SHAPES: dict[str, dict[int, str]] = {
    **{name: {0: "shape"} for name in ("zeros", "ones", "empty", "full")},
    "arange": {0: "start", 1: "stop", 2: "step"},
    "linspace": {2: "num"},
    "eye": {0: "N", 1: "M"},
    "reshape": {1: "shape"},
    "broadcast_to": {1: "shape"},
    "tile": {1: "reps"},
}
NAMED_SHAPES: dict[str, dict[int, str]] = {
    "jax.nn.one_hot": {1: "num_classes"},
    "jax.random.normal": {1: "shape"},
    "jax.random.uniform": {1: "shape"},
}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer_jax(project)
    for traced, node in inference.sites:
        if isinstance(node, ast.Call):
            for part in _shape_parts(inference, traced.module, node):
                if inference.of(part).is_symbolic:
                    text = quoted(traced.module, part)
                    message = f"the shape of {quoted(traced.module, node)} depends on {text}"
                    yield failure(inference, RULE, traced, node, message, STATIC)
                    break
        elif isinstance(node, ast.Slice):
            around = traced.module.parents[node]
            owner = traced.module.parents[around] if isinstance(around, ast.Tuple) else around
            bounds = [bound for bound in (node.lower, node.upper, node.step) if bound is not None]
            bound = next((bound for bound in bounds if inference.of(bound).is_symbolic), None)
            if bound is not None and isinstance(owner, ast.Subscript):
                text = quoted(traced.module, bound)
                message = f"the size of {quoted(traced.module, owner)} depends on {text}"
                yield failure(inference, RULE, traced, owner, message, DYNAMIC_SLICE)


def _shape_parts(inference: JaxInference, module: Module, node: ast.Call) -> Iterator[ast.expr]:
    name = module.names.of(node.func)
    for number, keyword in {
        **SHAPES.get(array_function(name) or "", {}),
        **NAMED_SHAPES.get(name or "", {}),
    }.items():
        yield from elements_of(argument(node, number, keyword))
    match node.func:
        case ast.Attribute(attr="reshape", value=owner) if inference.of(owner).is_symbolic:
            for value in node.args:
                yield from elements_of(value)
