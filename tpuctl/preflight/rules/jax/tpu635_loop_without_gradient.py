"""TPU635 loop-without-gradient."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.compiled_functions import GRADIENTS, decorated
from tpuctl.preflight.analysis.program.control_flow import names_in
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import Function, argument, parameters_of, returns_of
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU635",
    name="loop-without-gradient",
    severity=Severity.risk,
    summary="Loss computes with `jax.lax.while_loop`, which has no gradient",
    rationale=(
        "Reverse-mode differentiation needs the values of every iteration, and XLA cannot keep "
        "an unknown number of them: `jax.grad` of a function whose result depends on a "
        "`while_loop` raises a ValueError. `jax.lax.scan` and a `fori_loop` with fixed bounds "
        "have gradients, as do solvers with a `jax.custom_vjp`."
    ),
    bad="""\
import jax
import jax.numpy as jnp


def loss(weights):
    return jax.lax.while_loop(lambda z: z < 10.0, lambda z: z + weights, 0.0)


print(jax.grad(loss)(3.0))
""",
    good="""\
import jax
import jax.numpy as jnp


def loss(weights):
    return jax.lax.fori_loop(0, 4, lambda _, z: jnp.where(z < 10.0, z + weights, z), 0.0)


print(jax.grad(loss)(3.0))
""",
)

MAX_CALLS = 4  # functions between a loss and its loop


def find(project: Project, target: Target) -> Iterator[Finding]:
    reported = set()
    for module in project:
        for call in module.calls:
            name = module.names.of(call.func) or ""
            if not name.startswith(("jax.", "flax.nnx.", "equinox.")) or not call.args:
                continue
            function = function_of(project, module, call.args[0])
            if not name.endswith(GRADIENTS) or function is None or call.keywords:
                continue
            first = [parameter.arg for parameter in parameters_of(function[1])][:1]
            for where, loop in _loops(project, *function, set(first), MAX_CALLS):
                if loop not in reported:
                    reported.add(loop)
                    message = f"{quoted(where, loop.func)} has no gradient, and the loss needs it"
                    hint = "Use jax.lax.scan, or define the gradient with jax.custom_vjp."
                    yield finding_at(RULE, where, loop, message, hint)


def _loops(
    project: Project, module: Module, function: Function, names: set[str], depth: int
) -> Iterator[tuple[Module, ast.Call]]:
    """The loops whose bodies compute with what is differentiated, by these names."""
    decorators = getattr(function, "decorator_list", [])
    if not depth or not names or (decorators and decorated(module, function) is None):
        return
    nodes = module.own_nodes(function)
    if any(getattr(node, "attr", getattr(node, "id", "")) == "stop_gradient" for node in nodes):
        return
    returned = {name for part in returns_of(function) if part.value for name in names_in(part)}
    for call in nodes:
        if not isinstance(call, ast.Call):
            continue
        if module.names.of(call.func) == "jax.lax.while_loop":
            body = function_of(project, module, argument(call, 1, "body_fun") or call)
            statement = module.statement_of(call)
            bound = {part.id for part in ast.walk(statement) if isinstance(part, ast.Name)}
            is_used = isinstance(statement, ast.Return) or bool(bound & returned)
            if body is not None and is_used and names & names_in(body[1]):
                yield module, call
            continue
        inner = function_of(project, module, call.func)
        if inner is None:
            continue
        parameters = [parameter.arg for parameter in parameters_of(inner[1])]
        passed = {
            parameter
            for parameter, value in zip(parameters, call.args, strict=False)
            if isinstance(value, ast.Name) and value.id in names
        }
        yield from _loops(project, *inner, passed, depth - 1)
