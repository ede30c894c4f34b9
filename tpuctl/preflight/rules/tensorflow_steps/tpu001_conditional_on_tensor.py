"""TPU001 conditional-on-tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.program.syntax import own_nodes
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.inference import Inference, infer
from tpuctl.preflight.analysis.tracing.traced import Traced
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU001",
    name="conditional-on-tensor",
    severity=Severity.error,
    summary="Condition on a tensor in code that AutoGraph does not convert",
    rationale=(
        "A tensor has no value during tracing, so Python cannot choose a branch with it. AutoGraph "
        "rewrites such conditionals in a `tf.function`, but not where it is disabled, not in code "
        "that Keras 3 traces, and never in `assert` or in the condition of a comprehension. "
        "Tracing fails with an OperatorNotAllowedInGraphError."
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


CONDITIONS = (ast.If, ast.IfExp, ast.BoolOp, ast.UnaryOp, ast.Assert, ast.comprehension)


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer(project, target)
    for traced, node in inference.sites:
        if not isinstance(node, CONDITIONS):
            continue
        if isinstance(node, (ast.If, ast.IfExp)):
            yield from _condition(inference, traced, node, node.test)
            if isinstance(node, ast.If) and traced.autograph and inference.of(node.test).is_tensor:
                yield from _unbalanced(traced, node)
        elif isinstance(node, ast.BoolOp):
            for part in node.values[:-1]:
                yield from _logical(inference, traced, node, part)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield from _logical(inference, traced, node, node.operand)
        elif isinstance(node, ast.Assert):
            yield from _assertion(inference, traced, node)
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                if inference.of(test).is_tensor:
                    text = f"`if` in a comprehension on the tensor {quoted(traced.module, test)}"
                    yield finding_at(RULE, traced, test, text, _choice(traced, test))


def _condition(
    inference: Inference, traced: Traced, node: ast.If | ast.IfExp, test: ast.expr
) -> Iterator[Finding]:
    if traced.autograph or not inference.of(test).is_tensor or isinstance(test, ast.BoolOp):
        return
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return  # reported for the `not`
    message = f"`if` on the tensor {quoted(traced.module, test)}, and {traced.no_autograph}"
    yield finding_at(RULE, traced, node, message, _choice(traced, test))


def _choice(traced: Traced, test: ast.expr) -> str:
    text = traced.module.segment(test)
    return (
        f"Select values with tf.where({text}, a, b), or run one branch with\n    tf.cond({text}, "
        "lambda: a, lambda: b)"
    )


def _logical(
    inference: Inference, traced: Traced, node: ast.expr, part: ast.expr
) -> Iterator[Finding]:
    if traced.autograph or not inference.of(part).is_tensor:
        return
    if isinstance(part, ast.BoolOp):
        return  # reported for its parts
    word = "not" if isinstance(node, ast.UnaryOp) else "and"
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        word = "or"
    message = f"`{word}` on the tensor {quoted(traced.module, part)}, and {traced.no_autograph}"
    yield finding_at(RULE, traced, node, message, f"Use tf.logical_{word}.")


def _assertion(inference: Inference, traced: Traced, node: ast.Assert) -> Iterator[Finding]:
    if inference.of(node.test).is_tensor:
        text = f"`assert` on the tensor {quoted(traced.module, node.test)} during tracing"
        hint = "Check it on the host, before the step or on what the step returns."
        yield finding_at(RULE, traced, node, text, hint)


# What AutoGraph converts, with restrictions of XLA ----------------------------------------------


def _unbalanced(traced: Traced, node: ast.If) -> Iterator[Finding]:
    """Report a conditional that sets a value used later in only one of its branches."""
    if isinstance(traced.node, ast.Lambda):
        return
    is_last = traced.node.body[-1] is node
    if is_last and _returns(node.body) != _returns(node.orelse):
        message = (
            f"only one branch of `if` on the tensor {quoted(traced.module, node.test)} returns"
        )
        hint = "Return from both branches: an XLA program has one result type."
        yield finding_at(RULE, traced, node, message, hint)
        return
    if _exits(node.body) or _exits(node.orelse):
        return
    branches = [_assigned_in(node.body), _assigned_in(node.orelse)]
    only_one = branches[0] ^ branches[1]
    for name in sorted(only_one):
        if _is_set_before(traced, node, name) or not _is_read_after(traced, node, name):
            continue
        message = (
            f"`{name}` is set in only one branch of `if` on the tensor "
            f"{quoted(traced.module, node.test)}, and used after it"
        )
        hint = f"Set `{name}` before the conditional, or in both branches."
        yield finding_at(RULE, traced, node, message, hint)


def _returns(body: list[ast.stmt]) -> bool:
    """Whether a branch always returns a value or raises."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.If):
        return _returns(last.body) and _returns(last.orelse)
    is_none = isinstance(last, ast.Return) and (
        last.value is None or (isinstance(last.value, ast.Constant) and last.value.value is None)
    )
    return isinstance(last, (ast.Return, ast.Raise)) and not is_none


def _exits(body: list[ast.stmt]) -> bool:
    kinds = (ast.Return, ast.Raise, ast.Break, ast.Continue)
    return any(isinstance(part, kinds) for statement in body for part in ast.walk(statement))


def _assigned_in(body: list[ast.stmt]) -> set[str]:
    """The names that the statements always set."""
    names: set[str] = set()
    for statement in body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            names |= {
                part.id
                for part in ast.walk(statement)
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
    return names


def _is_set_before(traced: Traced, node: ast.If, name: str) -> bool:
    arguments = traced.node.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    if name in {part.arg for part in parameters}:
        return True
    others = (
        part
        for part in own_nodes(traced.node)
        if isinstance(part, ast.Name)
        and part.id == name
        and isinstance(part.ctx, (ast.Store, ast.Del))
    )
    end = node.end_lineno or node.lineno
    return any(not node.lineno <= part.lineno <= end for part in others)


def _is_read_after(traced: Traced, node: ast.If, name: str) -> bool:
    end = node.end_lineno or node.lineno
    return any(
        isinstance(part, ast.Name)
        and part.id == name
        and isinstance(part.ctx, ast.Load)
        and part.lineno > end
        for part in own_nodes(traced.node)
    )
