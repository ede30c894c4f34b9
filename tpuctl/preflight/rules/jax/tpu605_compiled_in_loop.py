"""TPU605 compiled-in-loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.compiled_functions import called_compiler, decorated
from tpuctl.preflight.analysis.jax.inference import infer_jax
from tpuctl.preflight.analysis.program.callers import calls_of
from tpuctl.preflight.analysis.program.control_flow import (
    is_in_branch,
    loop_around,
    names_bound_in,
    names_in,
)
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import parameters_of
from tpuctl.preflight.analysis.program.wrappers import WRAPPERS
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU605",
    name="compiled-in-loop",
    severity=Severity.cost,
    summary="A new function is passed to `jax.jit` in each iteration of a loop",
    rationale=(
        "JAX caches what it compiles by function. A lambda, a `def`, `functools.partial`, and "
        "`jax.grad` create a new function in each iteration, so each one traces and compiles "
        "again. A function created before the loop is compiled once."
    ),
    bad="""\
import jax
import jax.numpy as jnp


def loss(weights, x):
    return jnp.mean((x @ weights) ** 2)


weights = jnp.ones(8)
for step in range(1000):
    gradient = jax.jit(jax.grad(loss))(weights, jnp.ones((4, 8)))
    weights = weights - 0.1 * gradient
""",
    good="""\
import jax
import jax.numpy as jnp


def loss(weights, x):
    return jnp.mean((x @ weights) ** 2)


weights = jnp.ones(8)
gradient_of = jax.jit(jax.grad(loss))
for step in range(1000):
    gradient = gradient_of(weights, jnp.ones((4, 8)))
    weights = weights - 0.1 * gradient
""",
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    yield from _in_functions(project)
    for module in project:
        for node in module.of_types(ast.Call, ast.FunctionDef):
            loop = loop_around(module, node)
            if loop is None or is_in_branch(module, node, loop):
                continue
            if isinstance(node, ast.Call):
                if called_compiler(project, module, node) is None:
                    continue
                created = _created(module, loop, node.args[0])
                is_called = _is_called(module, loop, node)
            else:
                created = node if decorated(module, node) is not None else None
                is_called = _calls(loop, node.name)
            if created is None or not is_called:
                continue
            if not any(_depends_on_loop(loop, part) for part in (node, created)):
                text = quoted(module, node) if isinstance(node, ast.Call) else f"`{node.name}`"
                message = f"{text} is traced and compiled again in each iteration of the loop"
                yield finding_at(RULE, module, node, message, "Create it once, before the loop.")


def _in_functions(project: Project) -> Iterator[Finding]:
    """Functions that a loop calls, and that compile a new function whenever they run."""
    inference = infer_jax(project)
    for module in project:
        for node in module.calls:
            function = module.enclosing_function(node)
            parent = module.parents[node]
            is_called = isinstance(parent, ast.Call) and parent.func is node
            if not is_called or not isinstance(function, ast.FunctionDef):
                continue
            if function.decorator_list or function in inference.contexts or not node.args:
                continue
            if loop_around(module, node) or is_in_branch(module, node, None):
                continue
            is_new = isinstance(node.args[0], ast.Lambda) or (
                module.names.called(node.args[0]) in WRAPPERS
            )
            if not is_new or called_compiler(project, module, node) is None:
                continue
            calls, _ = calls_of(project, module, function)
            loops = [(where, call, loop_around(where, call)) for where, call in calls]
            if any(loop and not is_in_branch(where, call, loop) for where, call, loop in loops):
                message = (
                    f"{quoted(module, node)} is traced and compiled again whenever a loop calls "
                    f"`{function.name}`"
                )
                hint = "Create it once, outside of the function."
                yield finding_at(RULE, module, node, message, hint)


def _created(module: Module, loop: ast.AST, node: ast.expr) -> ast.AST | None:
    """The node that creates a new function in each iteration, if one does."""
    if isinstance(node, ast.Lambda) or module.names.called(node) in WRAPPERS:
        return node
    if isinstance(node, ast.Name):
        for part in getattr(loop, "body", []):
            if isinstance(part, ast.FunctionDef) and part.name == node.id:
                return part
    return None


def _is_called(module: Module, loop: ast.AST, node: ast.Call) -> bool:
    """Whether the loop calls the compiled function."""
    parent = module.parents.get(node)
    if isinstance(parent, ast.Call):
        return parent.func is node
    target = parent.targets[0] if isinstance(parent, ast.Assign) else None
    return isinstance(target, ast.Name) and _calls(loop, target.id)


def _calls(loop: ast.AST, name: str) -> bool:
    return any(
        isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == name
        for part in ast.walk(loop)
    )


def _depends_on_loop(loop: ast.AST, created: ast.AST) -> bool:
    """Whether the function reads names that the loop binds, so that it must be a new one."""
    bound = names_bound_in(loop)
    bound |= {part.name for part in ast.walk(loop) if isinstance(part, ast.FunctionDef)}
    inner = {
        parameter.arg
        for part in ast.walk(created)
        if isinstance(part, (ast.FunctionDef, ast.Lambda))
        for parameter in parameters_of(part)
    }
    if isinstance(created, ast.FunctionDef):
        inner |= {created.name} | names_bound_in(created)
    return bool((names_in(created) - inner) & bound)
