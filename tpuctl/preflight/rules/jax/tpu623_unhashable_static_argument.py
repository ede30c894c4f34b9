"""TPU623 unhashable-static-argument."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.inference import infer_jax
from tpuctl.preflight.analysis.jax.loops import arguments_of, compiled_of
from tpuctl.preflight.analysis.jax.processes import resolved
from tpuctl.preflight.analysis.program.control_flow import is_in_branch
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU623",
    name="unhashable-static-argument",
    severity=Severity.error,
    summary="Array, list or dictionary is passed as a static argument",
    rationale=(
        "JAX looks up the compiled program by its static arguments, so they must be hashable. "
        "Arrays, lists, dictionaries and sets are not, and raise a ValueError. Arrays are to be "
        "traced; a tuple can be static."
    ),
    bad="""\
from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.jit, static_argnums=1)
def resized(x, shape):
    return jnp.reshape(x, shape)


print(resized(jnp.ones(8), [2, 4]))
""",
    good="""\
from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.jit, static_argnums=1)
def resized(x, shape):
    return jnp.reshape(x, shape)


print(resized(jnp.ones(8), (2, 4)))
""",
)

DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
LIBRARIES = ("jax.numpy", "numpy", "jax.random")
CREATING = {
    *("array", "asarray", "zeros", "ones", "full", "arange", "linspace", "eye", "normal"),
    *("uniform", "key", "PRNGKey", "stack", "concatenate"),
}


def find(project: Project, target: Target) -> Iterator[Finding]:
    if not any(name.startswith("static_") for name in project.used_names):
        return
    inference = infer_jax(project)
    for module in project:
        for call in module.calls:
            compiled = compiled_of(project, module, call.func)
            static = None if compiled is None else compiled.static
            if (
                compiled is None
                or not static
                or module.enclosing_function(call) in inference.traced
            ):
                continue
            for name, value in arguments_of(compiled, call):
                if name in static and _is_unhashable(project, module, value):
                    text = quoted(module, value)
                    message = f"{text} is not hashable, and `{name}` is a static argument"
                    hint = f"Pass a tuple, or remove `{name}` from the static arguments."
                    is_certain = not is_in_branch(module, call, None)
                    severity = Severity.error if is_certain else Severity.risk
                    yield finding_at(RULE, module, value, message, hint, severity=severity)


def _is_unhashable(project: Project, module: Module, node: ast.expr) -> bool:
    module, value = resolved(project, module, node)
    library, _, function = (module.names.called(value) or "").rpartition(".")
    return isinstance(value, DISPLAYS) or (library in LIBRARIES and function in CREATING)
