"""Conditionals and loops that depend on values (TPU001, TPU002, TPU003)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.inference import Inference, inferred
from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.analysis.syntax import argument
from tpuctl.preflight.analysis.traced import Traced, is_taped
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules.converted import growing, uneven
from tpuctl.preflight.rules.places import at, shown

__all__ = ["RULES", "find"]

RULES: tuple[Rule, ...] = (
    Rule(
        "TPU001",
        "conditional-on-tensor",
        Severity.error,
        "A condition on a tensor in code that autograph does not convert",
        "While a program is traced a tensor has no value, so Python cannot choose a branch by it. "
        "Autograph rewrites such conditionals in a `tf.function`, but not where it is switched "
        "off, not in what Keras 3 traces, and nowhere in `assert` or in the condition of a "
        "comprehension. Tracing ends with an OperatorNotAllowedInGraphError.",
        """\
import keras
import tensorflow as tf


class Gate(keras.layers.Layer):
    def call(self, x):
        if tf.reduce_sum(x) > 0:
            return x
        return -x


model = keras.Sequential([Gate()])
model.predict(tf.ones([8, 8]))
""",
        """\
import keras
import tensorflow as tf


class Gate(keras.layers.Layer):
    def call(self, x):
        return tf.where(tf.reduce_sum(x) > 0, x, -x)


model = keras.Sequential([Gate()])
model.predict(tf.ones([8, 8]))
""",
    ),
    Rule(
        "TPU002",
        "loop-over-tensor",
        Severity.error,
        "A loop over a tensor in code that autograph does not convert",
        "While a program is traced a tensor has no value, so Python can neither count to it nor "
        "go over its rows. Autograph rewrites such loops in a `tf.function`, but not where it is "
        "switched off, not in what Keras 3 traces, and nowhere in a comprehension.",
        """\
import tensorflow as tf


@tf.function(autograph=False)
def total(rows):
    result = tf.zeros([8])
    for row in tf.abs(rows):
        result += row
    return result
""",
        """\
import tensorflow as tf


@tf.function(autograph=False)
def total(rows):
    return tf.reduce_sum(tf.abs(rows), axis=0)
""",
    ),
    Rule(
        "TPU003",
        "unbounded-loop-gradient",
        Severity.error,
        "A gradient through a loop whose number of rounds nobody knows",
        "To go backwards through a loop, XLA keeps what each round computed and needs to know, "
        'when it compiles, how many rounds there are at most. It refuses others: "XLA compilation '
        'requires a fixed tensor list size".',
        """\
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
        """\
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
    ),
)
Loop = ast.For | ast.While
GROWS = (ast.Mult, ast.MatMult, ast.Div, ast.Pow, ast.Mod)
# These hand on what they are given; a gradient needs nothing kept for them.
LIGHT = {"cast", "shape", "size", "rank", "range", "len", "zeros_like", "add", "subtract"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    """Yield what breaks these rules."""
    known = inferred(project, target)
    for one, node in known.sites():
        if isinstance(node, (ast.If, ast.IfExp)):
            yield from _condition(known, one, node, node.test)
            if isinstance(node, ast.If) and one.autograph and known.of(node.test).is_tensor:
                yield from uneven(one, node)
        elif isinstance(node, ast.BoolOp):
            for part in node.values[:-1]:
                yield from _logical(known, one, node, part)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield from _logical(known, one, node, node.operand)
        elif isinstance(node, ast.Assert):
            yield from _assertion(known, one, node)
        elif isinstance(node, ast.comprehension):
            yield from _comprehension(known, one, node)
        elif isinstance(node, (ast.For, ast.While)):
            yield from _loop(known, one, node)
            subject = node.test if isinstance(node, ast.While) else node.iter
            if one.autograph and known.of(subject).is_tensor:
                yield from growing(one, node)
        elif isinstance(node, ast.Call):
            yield from _while_loop(one, node)


def _condition(
    known: Inference, one: Traced, node: ast.If | ast.IfExp, test: ast.expr
) -> Iterator[Finding]:
    if one.autograph or not known.of(test).is_tensor or isinstance(test, ast.BoolOp):
        return
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return  # told of the `not`
    message = f"`if` on the tensor {shown(one.module, test)}, and {one.no_autograph}"
    yield at(one, node, "TPU001", Severity.error, message, _choice(one, test))


def _choice(one: Traced, test: ast.expr) -> str:
    text = one.module.segment(test)
    return (
        f"Choose by value: tf.where({text}, a, b), or by branch:\n    tf.cond({text}, lambda: a, "
        "lambda: b)"
    )


def _logical(known: Inference, one: Traced, node: ast.expr, part: ast.expr) -> Iterator[Finding]:
    if one.autograph or not known.of(part).is_tensor:
        return
    if isinstance(part, ast.BoolOp):
        return  # told of its own parts
    word = "not" if isinstance(node, ast.UnaryOp) else "and"
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        word = "or"
    message = f"`{word}` on the tensor {shown(one.module, part)}, and {one.no_autograph}"
    hint = f"Use tf.logical_{word}."
    yield at(one, node, "TPU001", Severity.error, message, hint)


def _assertion(known: Inference, one: Traced, node: ast.Assert) -> Iterator[Finding]:
    if known.of(node.test).is_tensor:
        text = f"`assert` on the tensor {shown(one.module, node.test)} while it is traced"
        hint = "Check it on the host, before the step or with what the step returns."
        yield at(one, node, "TPU001", Severity.error, text, hint)


def _comprehension(known: Inference, one: Traced, node: ast.comprehension) -> Iterator[Finding]:
    over = known.of(node.iter)
    if over.is_tensor:
        text = f"a comprehension over the tensor {shown(one.module, node.iter)}"
        hint = "Operations work on all rows at once; tf.map_fn does one after the other."
        yield at(one, node.iter, "TPU002", Severity.error, text, hint)
    for test in node.ifs:
        if known.of(test).is_tensor:
            text = f"`if` in a comprehension on the tensor {shown(one.module, test)}"
            yield at(one, test, "TPU001", Severity.error, text, _choice(one, test))


# Loops --------------------------------------------------------------------------------------


def _loop(known: Inference, one: Traced, node: Loop) -> Iterator[Finding]:
    subject = node.test if isinstance(node, ast.While) else node.iter
    if not known.of(subject).is_tensor:
        return
    word = "while" if isinstance(node, ast.While) else "for"
    text = shown(one.module, subject)
    if not one.autograph:
        message = f"`{word}` over the tensor {text}, and {one.no_autograph}"
        if isinstance(node, ast.While):
            message = f"`while` on the tensor {text}, and {one.no_autograph}"
        hint = "Use tf.while_loop, tf.scan or operations on all rows at once."
        yield at(one, node, "TPU002", Severity.error, message, hint)
        return
    is_differentiated = one.is_differentiated or is_taped(one.module, node)
    if is_differentiated and not _is_bounded(known, node) and _keeps(node):
        message = f"a gradient is taken through `{word}` {text}, whose rounds have no bound"
        hint = (
            "Say how many rounds there are at most, first in the loop:\n"
            "    tf.autograph.experimental.set_loop_options(maximum_iterations=…)"
        )
        if isinstance(node, ast.For):
            hint = "Let the loop run for a number that is known, and mask the rounds beyond."
        yield at(one, node, "TPU003", Severity.error, message, hint)


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
    if one.module.names.of(node.func) not in (
        "tensorflow.while_loop",
        "tensorflow.compat.v1.while_loop",
    ):
        return
    if not (one.is_differentiated or is_taped(one.module, node)):
        return
    named = {key.arg for key in node.keywords}
    if named & {"maximum_iterations", "back_prop"} or len(node.args) > 6:
        return
    body = argument(node, 1, "body")
    if isinstance(body, ast.Lambda) and not _keeps(body):
        return
    message = f"a gradient is taken through {shown(one.module, node)}, whose rounds have no bound"
    hint = "Say how many rounds there are at most: tf.while_loop(…, maximum_iterations=…)"
    yield at(one, node, "TPU003", Severity.error, message, hint)
