"""TPU601 branch-on-tracer."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.jax.inference import JaxInference, infer_jax
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import failure

RULE = Rule(
    code="TPU601",
    name="branch-on-tracer",
    severity=Severity.error,
    summary="Python condition on an array in a function that JAX compiles",
    rationale=(
        "While JAX traces a function, its arrays have shapes and types but no values, so Python "
        "cannot choose a branch with them. `if`, `while`, `assert`, `and`, `or`, `not`, `bool`, "
        "and Python's `min` and `max` raise a TracerBoolConversionError. Shapes, types, and "
        "static arguments are Python values, on which conditions work."
    ),
    bad="""\
import jax
import jax.numpy as jnp


@jax.jit
def clipped(gradient):
    norm = jnp.linalg.norm(gradient)
    if norm > 1.0:
        gradient = gradient / norm
    return gradient


clipped(jnp.ones(8))
""",
    good="""\
import jax
import jax.numpy as jnp


@jax.jit
def clipped(gradient):
    norm = jnp.linalg.norm(gradient)
    return jnp.where(norm > 1.0, gradient / norm, gradient)


clipped(jnp.ones(8))
""",
)

CONVERTING_BUILTINS = {"bool", "any", "all", "min", "max", "sorted"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer_jax(project)
    for traced, node in inference.sites:
        for word, condition in _conditions(inference, traced.module, node):
            if inference.of(condition).is_computed:
                text = quoted(traced.module, condition)
                message = f"`{word}` on {text}, which has no value while JAX traces the function"
                yield failure(
                    inference, RULE, traced, node, message, _hint(word, condition), condition
                )


def _conditions(
    inference: JaxInference, module: Module, node: ast.AST
) -> Iterator[tuple[str, ast.expr]]:
    """The expressions that a node converts to Python booleans, with the word that does."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            yield from _tested("if", test)
        case ast.While(test=test):
            yield from _tested("while", test)
        case ast.Assert(test=test):
            yield from _tested("assert", test)
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield from _tested("if", test)
        case ast.BoolOp(op=op, values=values):
            for value in values[:-1]:
                yield from _tested("and" if isinstance(op, ast.And) else "or", value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _tested("not", operand)
        case ast.Call(func=ast.Name(id=name), args=[value, *others]):
            if name in CONVERTING_BUILTINS and module.names.of(node.func) is None:
                if name in ("min", "max") and others:
                    yield from _compared(inference, name, [value, *others])
                elif not (name in ("min", "max", "sorted") and node.keywords):
                    yield name, value


def _tested(word: str, test: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """A condition, unless it is itself reported."""
    is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    if not is_not and not isinstance(test, ast.BoolOp):
        yield word, test


def _compared(
    inference: JaxInference, name: str, values: list[ast.expr]
) -> Iterator[tuple[str, ast.expr]]:
    """The first of several arguments of `min` or `max` that is an array."""
    for value in values:
        if inference.of(value).is_computed:
            yield name, value
            return


def _hint(word: str, condition: ast.expr) -> str:
    if word == "assert":
        return "Check it outside the compiled function, or with jax.experimental.checkify."
    if word in ("and", "or", "not"):
        return f"Use jnp.logical_{word}."
    if word in ("any", "all", "min", "max", "sorted"):
        function = {"min": "minimum", "max": "maximum", "sorted": "sort"}.get(word, word)
        return f"Use jnp.{function}."
    if word == "while":
        return "Use jax.lax.while_loop."
    if isinstance(condition, ast.Name):
        return (
            f"If `{condition.id}` is a setting, make it static: static_argnames="
            f'"{condition.id}".\nOtherwise, select values with jnp.where, or run one branch with '
            "jax.lax.cond."
        )
    return "Select values with jnp.where, or run one branch with jax.lax.cond."
