"""TPU622 captured-array."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.inference import infer_jax
from tpuctl.preflight.analysis.jax.processes import GENERATORS, resolved
from tpuctl.preflight.analysis.program.control_flow import names_bound_in
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import (
    FUNCTIONS,
    Function,
    argument,
    elements_of,
    parameters_of,
)
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU622",
    name="captured-array",
    severity=Severity.cost,
    summary="Large array from outside becomes a constant of the compiled function",
    rationale=(
        "An array that a compiled function reads from the code around it is written into the "
        "program: it makes compilation slow, the compiled program large, and takes memory of "
        "the TPU once more, on every device. An argument is not copied."
    ),
    bad="""\
import jax
import jax.numpy as jnp
import numpy as np

images = np.zeros((1000, 28, 28, 3), np.float32)


@jax.jit
def step(weights, index):
    return weights + jnp.mean(jnp.asarray(images)[index])


print(step(jnp.ones(8), 3))
""",
    good="""\
import jax
import jax.numpy as jnp
import numpy as np

images = np.zeros((1000, 28, 28, 3), np.float32)


@jax.jit
def step(weights, images, index):
    return weights + jnp.mean(images[index])


print(step(jnp.ones(8), images, 3))
""",
)

LOADING = {"load", "loadtxt", "genfromtxt", "fromfile", "memmap"}
CREATING = {"zeros", "ones", "full", "empty", "normal", "uniform", "rand", "randn", "random"}
LIBRARIES = ("numpy", "jax.numpy", "numpy.random", "jax.random")
LARGE = 1_000_000  # elements
DATA_SET = 250_000  # elements of what steps take examples of, which is larger for more data


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer_jax(project)
    reported = set()
    for traced, node in inference.sites:
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        module, parent = traced.module, traced.module.parents.get(node)
        if (traced.node, node.id) in reported or getattr(parent, "attr", "") in ("shape", "dtype"):
            continue
        is_data = isinstance(parent, ast.Subscript) and parent.value is node
        limit = DATA_SET if is_data else LARGE
        if _is_outside(module, node) and _is_large(project, module, node, limit):
            reported.add((traced.node, node.id))
            message = f"`{node.id}` becomes a constant of the program that XLA compiles"
            yield finding_at(RULE, traced, node, message, "Pass it as an argument.")


def _is_outside(module: Module, node: ast.Name) -> bool:
    """Whether no function around binds a name: those may be traced, too."""
    return not any(
        node.id in _bound_by(module, function)
        for function in module.ancestors(node)
        if isinstance(function, FUNCTIONS)
    )


def _bound_by(module: Module, function: Function) -> set[str]:
    """The names that a function binds, cached."""
    key = _bound_by, function
    if key not in module.cache:
        parameters = {parameter.arg for parameter in parameters_of(function)}
        module.cache[key] = parameters | names_bound_in(function)
    bound: set[str] = module.cache[key]
    return bound


def _is_large(project: Project, module: Module, node: ast.expr, limit: int) -> bool:
    """Whether an array was certainly loaded from a file, or has many elements."""
    module, value = resolved(project, module, node)
    while isinstance(value, ast.Subscript) or (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in ("astype", "reshape")
    ):
        value = value.value if isinstance(value, ast.Subscript) else value.func.value  # type: ignore[attr-defined]
    if not isinstance(value, ast.Call):
        return False
    library, _, function = (module.names.of(value.func) or "").rpartition(".")
    if not function and isinstance(value.func, ast.Attribute):
        where, owner = resolved(project, module, value.func.value)
        if where.names.called(owner) in GENERATORS:  # such as `rng.normal`
            library, function = "numpy.random", value.func.attr
    if library not in LIBRARIES:
        return False
    if function in ("asarray", "array") and value.args:
        return value.args[0] is not node and _is_large(project, module, value.args[0], limit)
    if function in LOADING and "random" not in library:
        return True
    if function not in CREATING:
        return False
    is_drawn = library == "jax.random"
    shape = argument(value, 1 if is_drawn else 0, "size" if "numpy.r" in library else "shape")
    shape = next((part.value for part in value.keywords if part.arg in ("size", "shape")), shape)
    sizes = list(value.args) if function in ("rand", "randn") else elements_of(shape)
    host = HostCode.of(project)
    numbers = [host.number(module, size) for size in sizes]
    return math.prod(number or 0 for number in numbers) >= limit
