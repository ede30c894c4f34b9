"""TPU003 unbounded-loop-gradient."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.inference import Inference, inferred
from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.analysis.source_findings import at, shown
from tpuctl.preflight.analysis.syntax import argument
from tpuctl.preflight.analysis.traced import Traced, is_taped
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

__all__ = ["RULE", "find"]

RULE = Rule(
    code="TPU003",
    name="unbounded-loop-gradient",
    severity=Severity.error,
    summary="A gradient through a loop whose number of rounds nobody knows",
    why=(
        "To go backwards through a loop, XLA keeps what each round computed and needs to know, "
        'when it compiles, how many rounds there are at most. It refuses others: "XLA compilation '
        'requires a fixed tensor list size".'
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
GROWS = (ast.Mult, ast.MatMult, ast.Div, ast.Pow, ast.Mod)
# These hand on what they are given; a gradient needs nothing kept for them.
LIGHT = {"cast", "shape", "size", "rank", "range", "len", "zeros_like", "add", "subtract"}
WHILE_LOOPS = ("tensorflow.while_loop", "tensorflow.compat.v1.while_loop")


def find(project: Project, target: Target) -> Iterator[Finding]:
    known = inferred(project, target)
    for one, node in known.sites:
        if isinstance(node, (ast.For, ast.While)):
            yield from _loop(known, one, node)
        elif isinstance(node, ast.Call) and one.module.names.of(node.func) in WHILE_LOOPS:
            yield from _while_loop(one, node)


def _is_differentiated(one: Traced, node: ast.AST) -> bool:
    return one.is_differentiated or is_taped(one.module, node)


def _loop(known: Inference, one: Traced, node: Loop) -> Iterator[Finding]:
    subject = node.test if isinstance(node, ast.While) else node.iter
    if not one.autograph or not known.of(subject).is_tensor or not _is_differentiated(one, node):
        return
    if not _is_bounded(known, node) and _keeps(node):
        word = "while" if isinstance(node, ast.While) else "for"
        text = shown(one.module, subject)
        message = f"a gradient is taken through `{word}` {text}, whose rounds have no bound"
        hint = (
            "Say how many rounds there are at most, first in the loop:\n"
            "    tf.autograph.experimental.set_loop_options(maximum_iterations=…)"
        )
        if isinstance(node, ast.For):
            hint = "Let the loop run for a number that is known, and mask the rounds beyond."
        yield at(RULE, one, node, message, hint)


def _is_bounded(known: Inference, node: Loop) -> bool:
    if isinstance(node, ast.For):
        if not isinstance(node.iter, ast.Call):
            return True  # over the rows of a tensor
        parts = [known.of(part) for part in node.iter.args]
        return not any(part.is_computed for part in parts)
    for part in ast.walk(node):
        if isinstance(part, ast.keyword) and part.arg == "maximum_iterations":
            return True
    return False


def _keeps(node: ast.AST) -> bool:
    """Whether going backwards needs what the rounds computed: sums of constants do not."""
    body = [node.body] if isinstance(node, ast.Lambda) else getattr(node, "body", [])
    assigned = {
        part.id
        for one in body
        for part in ast.walk(one)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }
    if isinstance(node, (ast.Lambda, ast.FunctionDef)):
        assigned |= {one.arg for one in node.args.args}
    for one in body:
        for part in ast.walk(one):
            if isinstance(part, ast.BinOp) and isinstance(part.op, GROWS):
                if _mentions(part, assigned):
                    return True
            elif isinstance(part, ast.AugAssign) and isinstance(part.op, GROWS):
                return True
            elif isinstance(part, ast.Call) and _mentions(part, assigned):
                last = getattr(part.func, "attr", getattr(part.func, "id", ""))
                if last not in LIGHT and not last.startswith("assert"):
                    return True
    return False


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))


def _while_loop(one: Traced, node: ast.Call) -> Iterator[Finding]:
    if not _is_differentiated(one, node):
        return
    named = {key.arg for key in node.keywords}
    if named & {"maximum_iterations", "back_prop"} or len(node.args) > 6:
        return
    body = argument(node, 1, "body")
    if isinstance(body, ast.Lambda) and not _keeps(body):
        return
    message = f"a gradient is taken through {shown(one.module, node)}, whose rounds have no bound"
    hint = "Say how many rounds there are at most: tf.while_loop(…, maximum_iterations=…)"
    yield at(RULE, one, node, message, hint)
