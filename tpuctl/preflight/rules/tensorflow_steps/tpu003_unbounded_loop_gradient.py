"""TPU003 unbounded-loop-gradient."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.control_flow import names_bound_in
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.inference import Inference, infer
from tpuctl.preflight.analysis.tracing.traced import Traced, is_taped
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU003",
    name="unbounded-loop-gradient",
    severity=Severity.error,
    summary="Gradient through a loop without a known maximum number of iterations",
    rationale=(
        "The backward pass of a loop needs the intermediate results of every iteration. XLA "
        "allocates memory for them at compile time, so it must know the maximum number of "
        "iterations. "
        'Otherwise it fails with "XLA compilation requires a fixed tensor list size".'
    ),
    bad="""\
import tensorflow as tf

cell = tf.Variable(tf.eye(8))


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        while tf.reduce_max(x) > 0.1:
            x = tf.tanh(x @ cell)
        loss = tf.reduce_sum(x)
    return tape.gradient(loss, cell)
""",
    good="""\
import tensorflow as tf

cell = tf.Variable(tf.eye(8))


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        while tf.reduce_max(x) > 0.1:
            tf.autograph.experimental.set_loop_options(maximum_iterations=20)
            x = tf.tanh(x @ cell)
        loss = tf.reduce_sum(x)
    return tape.gradient(loss, cell)
""",
)

Loop = ast.For | ast.While
NONLINEAR = (ast.Mult, ast.MatMult, ast.Div, ast.Pow, ast.Mod)
# Operations whose gradient needs no intermediate results.
LINEAR_OPERATIONS = {
    "cast",
    "shape",
    "size",
    "rank",
    "range",
    "len",
    "zeros_like",
    "add",
    "subtract",
}
WHILE_LOOPS = ("tensorflow.while_loop", "tensorflow.compat.v1.while_loop")


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer(project, target)
    for traced, node in inference.sites:
        if isinstance(node, (ast.For, ast.While)):
            yield from _loop(inference, traced, node)
        elif isinstance(node, ast.Call) and traced.module.names.of(node.func) in WHILE_LOOPS:
            yield from _while_loop(traced, node)


def _is_differentiated(traced: Traced, node: ast.AST) -> bool:
    return traced.is_differentiated or is_taped(traced.module, node)


def _loop(inference: Inference, traced: Traced, node: Loop) -> Iterator[Finding]:
    subject = node.test if isinstance(node, ast.While) else node.iter
    if (
        not traced.autograph
        or not inference.of(subject).is_tensor
        or not _is_differentiated(traced, node)
    ):
        return
    if not _is_bounded(inference, node) and _needs_intermediates(node):
        word = "while" if isinstance(node, ast.While) else "for"
        text = quoted(traced.module, subject)
        message = f"gradient through `{word}` {text}, whose number of iterations is unbounded"
        hint = (
            "Set the maximum number of iterations at the start of the loop body:\n"
            "    tf.autograph.experimental.set_loop_options(maximum_iterations=…)"
        )
        if isinstance(node, ast.For):
            hint = "Loop a fixed number of times and mask the surplus iterations."
        yield finding_at(RULE, traced, node, message, hint)


def _is_bounded(inference: Inference, node: Loop) -> bool:
    if isinstance(node, ast.For):
        if not isinstance(node.iter, ast.Call):
            return True  # over the rows of a tensor
        parts = [inference.of(part) for part in node.iter.args]
        return not any(part.is_computed for part in parts)
    for part in ast.walk(node):
        if isinstance(part, ast.keyword) and part.arg == "maximum_iterations":
            return True
    return False


def _needs_intermediates(node: ast.AST) -> bool:
    """Whether the backward pass needs intermediate results: sums of constants do not."""
    body = [node.body] if isinstance(node, ast.Lambda) else getattr(node, "body", [])
    assigned = {name for statement in body for name in names_bound_in(statement)}
    if isinstance(node, (ast.Lambda, ast.FunctionDef)):
        assigned |= {parameter.arg for parameter in node.args.args}
    for body_statement in body:
        for part in ast.walk(body_statement):
            if isinstance(part, ast.BinOp) and isinstance(part.op, NONLINEAR):
                if _mentions(part, assigned):
                    return True
            elif isinstance(part, ast.AugAssign) and isinstance(part.op, NONLINEAR):
                return True
            elif isinstance(part, ast.Call) and _mentions(part, assigned):
                last = getattr(part.func, "attr", getattr(part.func, "id", ""))
                if last not in LINEAR_OPERATIONS and not last.startswith("assert"):
                    return True
    return False


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))


def _while_loop(traced: Traced, node: ast.Call) -> Iterator[Finding]:
    if not _is_differentiated(traced, node):
        return
    keywords = {key.arg for key in node.keywords}
    if keywords & {"maximum_iterations", "back_prop"} or len(node.args) > 6:
        return
    body = argument(node, 1, "body")
    if isinstance(body, ast.Lambda) and not _needs_intermediates(body):
        return
    text = quoted(traced.module, node)
    message = f"gradient through {text}, whose number of iterations is unbounded"
    hint = "Set the maximum number of iterations: tf.while_loop(…, maximum_iterations=…)"
    yield finding_at(RULE, traced, node, message, hint)
