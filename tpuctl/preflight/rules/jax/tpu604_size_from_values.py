"""TPU604 size-from-values."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.inference import JaxInference, infer_jax
from tpuctl.preflight.analysis.jax.library import array_function
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import failure

RULE = Rule(
    code="TPU604",
    name="size-from-values",
    severity=Severity.error,
    summary="Result whose size depends on values, in a function that JAX compiles",
    rationale=(
        "XLA compiles a program for fixed shapes. How many elements a boolean index selects, and "
        "how many `jnp.nonzero`, `jnp.unique`, or `jnp.where` with one argument return, depends "
        "on values that do not exist while JAX traces the function. They raise a "
        "NonConcreteBooleanIndexError or a ConcretizationTypeError."
    ),
    bad="""\
import jax
import jax.numpy as jnp


@jax.jit
def mean_of_positive(x):
    return x[x > 0].mean()


mean_of_positive(jnp.ones(8))
""",
    good="""\
import jax
import jax.numpy as jnp


@jax.jit
def mean_of_positive(x):
    return jnp.mean(x, where=x > 0)


mean_of_positive(jnp.ones(8))
""",
)

# Functions, and the keyword with which the size of their result is fixed; "" if there is none.
FUNCTIONS = {
    **dict.fromkeys(("nonzero", "flatnonzero", "argwhere", "where", "unique"), "size"),
    **dict.fromkeys(("unique_all", "unique_counts", "unique_inverse", "unique_values"), "size"),
    **dict.fromkeys(("union1d", "intersect1d", "setdiff1d", "setxor1d"), "size"),
    **dict.fromkeys(("extract", "compress"), "size"),
    "bincount": "length",
}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer_jax(project)
    for traced, node in inference.sites:
        if isinstance(node, ast.Call):
            keyword = _missing_size(inference, traced.module, node)
            if keyword:
                text = quoted(traced.module, node)
                message = f"the size of {text} depends on values"
                hint = f"Give its largest size: {keyword}=…. It pads the result."
                yield failure(inference, RULE, traced, node, message, hint)
        elif isinstance(node, ast.Subscript):
            mask = _mask_of(inference, node)
            if mask is not None:
                around = traced.module.parents.get(node)
                is_update = getattr(node.value, "attr", "") == "at"
                text = quoted(traced.module, mask)
                message = f"the size of {quoted(traced.module, node)} depends on values"
                hint = f"Keep the full size, and use {text[1:-1]} with jnp.where or `where=`."
                if is_update and getattr(around, "attr", "") == "set":
                    hint = f"Use jnp.where({text[1:-1]}, new, old)."
                yield failure(inference, RULE, traced, node, message, hint)


def _missing_size(inference: JaxInference, module: Module, node: ast.Call) -> str:
    """The keyword that fixes the size of a result, if a call on arrays lacks it; else ""."""
    name = module.names.of(node.func)
    function = array_function(name) or ""
    values = node.args
    if name is None and isinstance(node.func, ast.Attribute) and node.func.attr == "nonzero":
        function, values = "nonzero", [node.func.value]
    keyword = FUNCTIONS.get(function, "")
    if not keyword or any(argument.arg in (None, keyword) for argument in node.keywords):
        return ""
    if function == "where" and len(node.args) + len(node.keywords) > 1:
        return ""
    takes_array = any(inference.of(value).is_symbolic for value in values[:2])
    return keyword if takes_array else ""


def _mask_of(inference: JaxInference, node: ast.Subscript) -> ast.expr | None:
    """The boolean array in the index of an array, if there is one."""
    if not isinstance(node.ctx, ast.Load) or not inference.of(node.value).is_symbolic:
        return None
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for part in parts:
        value = inference.of(part)
        if value.is_computed and value.is_boolean and not isinstance(part, ast.Slice):
            return part
    return None
