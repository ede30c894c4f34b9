"""TPU602 tracer-value-in-python."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.inference import JaxInference, infer_jax
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import failure

RULE = Rule(
    code="TPU602",
    name="tracer-value-in-python",
    severity=Severity.error,
    summary="Python or NumPy needs the value of an array in a function that JAX compiles",
    rationale=(
        "While JAX traces a function, its arrays have no values. `float`, `int`, `.item()`, and "
        "functions of `math` raise a ConcretizationTypeError, `range` a "
        "TracerIntegerConversionError, and most functions of NumPy a TracerArrayConversionError."
    ),
    bad="""\
import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def scaled(x):
    return x * np.sqrt(x)


scaled(jnp.ones(8))
""",
    good="""\
import jax
import jax.numpy as jnp


@jax.jit
def scaled(x):
    return x * jnp.sqrt(x)


scaled(jnp.ones(8))
""",
)

CONVERTING_BUILTINS = {"float", "int", "complex", "range"}
CONVERTING_METHODS = {"item", "tolist"}
# Those of NumPy's functions that convert their argument; others call a method of the array.
CONVERTING_FUNCTIONS = {
    *("array", "asarray", "sin", "cos", "tan", "exp", "log", "log1p", "sqrt", "square", "abs"),
    *("maximum", "minimum", "dot", "matmul", "concatenate", "stack", "where", "expand_dims"),
    *("broadcast_to", "zeros_like", "ones_like", "float32", "float64", "int32", "int64", "arange"),
    *("tanh", "sign", "isnan", "isfinite", "power", "add", "subtract", "multiply", "divide"),
}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer_jax(project)
    for traced, node in inference.sites:
        if isinstance(node, ast.Call):
            needed = _needed(inference, traced.module, node)
            if needed is not None:
                text = quoted(traced.module, node)
                message = f"{text} needs a value, which arrays lack while JAX traces the function"
                yield failure(inference, RULE, traced, node, message, needed)


def _needed(inference: JaxInference, module: Module, node: ast.Call) -> str | None:
    """What to write instead, if a call needs the value of an array; None otherwise."""
    name = module.names.of(node.func)
    if isinstance(node.func, ast.Name) and name is None:
        if node.func.id in CONVERTING_BUILTINS and _takes_array(inference, node):
            return (
                "Use jax.lax.fori_loop, or make the number a static argument."
                if node.func.id == "range"
                else "Keep it an array, or convert it where the compiled function returns it."
            )
        return None
    if isinstance(node.func, ast.Attribute) and name is None:
        is_array = inference.of(node.func.value).is_symbolic
        if node.func.attr in CONVERTING_METHODS and not node.args and is_array:
            return "Convert it where the compiled function returns it."
        return None
    library, _, function = (name or "").rpartition(".")
    is_converting = library == "math" or (library == "numpy" and function in CONVERTING_FUNCTIONS)
    if is_converting and _takes_array(inference, node):
        return f"Use jnp.{function}."
    return None


def _takes_array(inference: JaxInference, node: ast.Call) -> bool:
    return any(inference.of(value).is_symbolic for value in node.args)
