"""TPU616 side-effect-while-tracing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.inference import JaxInference, infer_jax
from tpuctl.preflight.analysis.program.control_flow import names_bound_in
from tpuctl.preflight.analysis.program.functions import library_bases
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, parameters_of
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.traced import Traced
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU616",
    name="side-effect-while-tracing",
    severity=Severity.risk,
    summary="Compiled function has an effect that only happens while JAX traces it",
    rationale=(
        "JAX runs the Python of a compiled function once, to trace it. `print` then shows a "
        "tracer, and nothing in later steps; a clock and Python's or NumPy's random numbers "
        "become constants of the program; and an array that is assigned to a global or an "
        "attribute, or appended to a list outside, is a tracer that later code cannot use."
    ),
    bad="""\
import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def noisy(weights):
    return weights + np.random.normal()


weights = jnp.ones(())
for number in range(100):
    print(noisy(weights))
""",
    good="""\
import jax
import jax.numpy as jnp


@jax.jit
def noisy(weights, key):
    return weights + jax.random.normal(key)


weights, key = jnp.ones(()), jax.random.key(0)
for number in range(100):
    print(noisy(weights, jax.random.fold_in(key, number)))
""",
)

CLOCKS = {
    *("time.time", "time.perf_counter", "time.monotonic", "time.time_ns"),
    *("datetime.datetime.now", "datetime.datetime.utcnow"),
}
RANDOM = ("random.", "numpy.random.", "secrets.", "uuid.", "os.urandom")
GENERATORS = ("default_rng", "RandomState", "Random", "seed", "Generator")
COLLECTING = {"append", "extend", "add", "insert", "put"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer_jax(project)
    for traced, node in inference.sites:
        if isinstance(node, ast.Call):
            effect = _of_call(inference, traced, node)
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            effect = _of_assignment(project, inference, traced, node)
        else:
            continue
        if effect is not None:
            message, hint = effect
            yield finding_at(RULE, traced, node, message, hint)


def _of_call(inference: JaxInference, traced: Traced, call: ast.Call) -> tuple[str, str] | None:
    name = traced.module.names.of(call.func) or ""
    text = quoted(traced.module, call)
    if isinstance(call.func, ast.Name) and call.func.id == "print":
        if any(_shows_array(inference, value) for value in call.args):
            return f"{text} prints a tracer, once", "Use jax.debug.print, or return the value."
        return None
    is_random = name.startswith(RANDOM) and not name.endswith(GENERATORS)
    if (is_random or name in CLOCKS) and not _initializes(inference, traced):
        return (
            f"{text} is called once, so its value is a constant of the program",
            "Draw with jax.random and a key that the caller passes."
            if is_random
            else "Measure around the call, after jax.block_until_ready on its results.",
        )
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in COLLECTING or name:
        return None
    owner = call.func.value
    is_array = any(inference.of(value).is_symbolic for value in call.args)
    if is_array and isinstance(owner, ast.Name) and _is_outside(inference, traced, owner.id):
        return f"{text} collects a tracer, once", "Return the array, and collect it outside."
    return None


def _shows_array(inference: JaxInference, node: ast.expr) -> bool:
    parts = [node]
    if isinstance(node, ast.JoinedStr):
        parts = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
    return any(inference.of(part).is_symbolic for part in parts)


def _initializes(inference: JaxInference, traced: Traced) -> bool:
    """Whether it may only be traced to initialize something, once."""
    roots = inference.roots_of[traced.node]
    return any(
        "init" in getattr(node, "name", "init") or getattr(node, "name", "") == "setup"
        for node in (traced.node, *roots)
    )


def _is_outside(inference: JaxInference, traced: Traced, name: str) -> bool:
    """Whether a name is bound outside of all traced functions around."""
    function: ast.AST | None = traced.node
    while isinstance(function, FUNCTIONS):
        if name in {parameter.arg for parameter in parameters_of(function)}:
            return False
        declared = {
            name
            for part in ast.walk(function)
            if isinstance(part, (ast.Global, ast.Nonlocal))
            for name in part.names
        }
        if name in names_bound_in(function) - declared:
            return function not in inference.contexts
        function = traced.module.enclosing_function(function)
    return True


def _of_assignment(
    project: Project, inference: JaxInference, traced: Traced, node: ast.Assign | ast.AugAssign
) -> tuple[str, str] | None:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    text = quoted(traced.module, target)
    if isinstance(target, ast.Name):
        declared = [
            name
            for part in traced.module.own_nodes(traced.node)
            if isinstance(part, (ast.Global, ast.Nonlocal))
            for name in part.names
        ]
        if target.id in declared and _is_outside(inference, traced, target.id):
            return f"{text} is assigned once, while JAX traces", "Return the value."
        return None
    owner = traced.module.parents.get(traced.node)
    if (
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
        and traced.is_root
        and isinstance(owner, ast.ClassDef)
        and not any(library_bases(project, traced.module, owner))
        and inference.of(node.value).is_symbolic
    ):
        return f"{text} becomes a tracer, which later code cannot use", "Return the array."
    return None
