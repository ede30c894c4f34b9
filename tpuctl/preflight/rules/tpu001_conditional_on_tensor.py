"""TPU001 conditional-on-tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.inference import Inference, inferred
from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.analysis.source_findings import at, shown
from tpuctl.preflight.analysis.syntax import own_nodes
from tpuctl.preflight.analysis.traced import Traced
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

__all__ = ["RULE", "find"]

RULE = Rule(
    code="TPU001",
    name="conditional-on-tensor",
    severity=Severity.error,
    summary="A condition on a tensor in code that autograph does not convert",
    why=(
        "While a program is traced a tensor has no value, so Python cannot choose a branch by it. "
        "Autograph rewrites such conditionals in a `tf.function`, but not where it is switched "
        "off, not in what Keras 3 traces, and nowhere in `assert` or in the condition of a "
        "comprehension. Tracing ends with an OperatorNotAllowedInGraphError."
    ),
    bad="""\
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
    good="""\
import keras
import tensorflow as tf


class Gate(keras.layers.Layer):
    def call(self, x):
        return tf.where(tf.reduce_sum(x) > 0, x, -x)


model = keras.Sequential([Gate()])
model.predict(tf.ones([8, 8]))
""",
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    known = inferred(project, target)
    for one, node in known.sites:
        if isinstance(node, (ast.If, ast.IfExp)):
            yield from _condition(known, one, node, node.test)
            if isinstance(node, ast.If) and one.autograph and known.of(node.test).is_tensor:
                yield from _uneven(one, node)
        elif isinstance(node, ast.BoolOp):
            for part in node.values[:-1]:
                yield from _logical(known, one, node, part)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield from _logical(known, one, node, node.operand)
        elif isinstance(node, ast.Assert):
            yield from _assertion(known, one, node)
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                if known.of(test).is_tensor:
                    text = f"`if` in a comprehension on the tensor {shown(one.module, test)}"
                    yield at(RULE, one, test, text, _choice(one, test))


def _condition(
    known: Inference, one: Traced, node: ast.If | ast.IfExp, test: ast.expr
) -> Iterator[Finding]:
    if one.autograph or not known.of(test).is_tensor or isinstance(test, ast.BoolOp):
        return
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return  # told of the `not`
    message = f"`if` on the tensor {shown(one.module, test)}, and {one.no_autograph}"
    yield at(RULE, one, node, message, _choice(one, test))


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
    yield at(RULE, one, node, message, f"Use tf.logical_{word}.")


def _assertion(known: Inference, one: Traced, node: ast.Assert) -> Iterator[Finding]:
    if known.of(node.test).is_tensor:
        text = f"`assert` on the tensor {shown(one.module, node.test)} while it is traced"
        hint = "Check it on the host, before the step or with what the step returns."
        yield at(RULE, one, node, text, hint)


# What autograph converts, and XLA's form of which has no such freedom ---------------------------


def _uneven(one: Traced, node: ast.If) -> Iterator[Finding]:
    """A conditional whose branches do not both give what is used afterwards."""
    if isinstance(one.node, ast.Lambda):
        return
    is_last = one.node.body[-1] is node
    if is_last and _returns(node.body) != _returns(node.orelse):
        message = f"only one branch of `if` on the tensor {shown(one.module, node.test)} returns"
        hint = "Return from both: a program of XLA's has one kind of result."
        yield at(RULE, one, node, message, hint)
        return
    if _leaves(node.body) or _leaves(node.orelse):
        return
    branches = [_stored(node.body), _stored(node.orelse)]
    only = branches[0] ^ branches[1]
    for name in sorted(only):
        if _is_set_before(one, node, name) or not _is_read_after(one, node, name):
            continue
        message = (
            f"`{name}` is set in one branch only of `if` on the tensor "
            f"{shown(one.module, node.test)}, and used after it"
        )
        hint = f"Set `{name}` before the conditional, or in both branches."
        yield at(RULE, one, node, message, hint)


def _returns(body: list[ast.stmt]) -> bool:
    """Whether a branch ends with a result that is not None."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.If):
        return _returns(last.body) and _returns(last.orelse)
    is_none = isinstance(last, ast.Return) and (
        last.value is None or (isinstance(last.value, ast.Constant) and last.value.value is None)
    )
    return isinstance(last, (ast.Return, ast.Raise)) and not is_none


def _leaves(body: list[ast.stmt]) -> bool:
    kinds = (ast.Return, ast.Raise, ast.Break, ast.Continue)
    return any(isinstance(part, kinds) for one in body for part in ast.walk(one))


def _stored(body: list[ast.stmt]) -> set[str]:
    """The names that statements surely set, whatever else they do."""
    found: set[str] = set()
    for one in body:
        if isinstance(one, (ast.Assign, ast.AnnAssign)):
            found |= {
                part.id
                for part in ast.walk(one)
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
    return found


def _is_set_before(one: Traced, node: ast.If, name: str) -> bool:
    arguments = one.node.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    if name in {part.arg for part in parameters}:
        return True
    others = (
        part
        for part in own_nodes(one.node)
        if isinstance(part, ast.Name)
        and part.id == name
        and isinstance(part.ctx, (ast.Store, ast.Del))
    )
    end = node.end_lineno or node.lineno
    return any(not node.lineno <= part.lineno <= end for part in others)


def _is_read_after(one: Traced, node: ast.If, name: str) -> bool:
    end = node.end_lineno or node.lineno
    return any(
        isinstance(part, ast.Name)
        and part.id == name
        and isinstance(part.ctx, ast.Load)
        and part.lineno > end
        for part in own_nodes(one.node)
    )
