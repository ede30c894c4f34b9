"""TPU002 loop-over-tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.inference import infer
from tpuctl.preflight.analysis.tracing.traced import Traced
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU002",
    name="loop-over-tensor",
    severity=Severity.error,
    summary="Loop over a tensor in code that AutoGraph does not convert",
    rationale=(
        "A tensor has no value during tracing, so Python can neither count up to it nor iterate "
        "over its rows. AutoGraph rewrites such loops in a `tf.function`, but not where it is "
        "disabled, not in code that Keras 3 traces, and never in a comprehension."
    ),
    bad="""\
import tensorflow as tf


@tf.function(autograph=False)
def total(rows):
    result = tf.zeros([8])
    for row in tf.abs(rows):
        result += row
    return result
""",
    good="""\
import tensorflow as tf


@tf.function(autograph=False)
def total(rows):
    return tf.reduce_sum(tf.abs(rows), axis=0)
""",
)

CONCATENATIONS = {"concat", "concatenate", "append", "vstack", "hstack"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer(project, target)
    for traced, node in inference.sites:
        if isinstance(node, ast.comprehension):
            if inference.of(node.iter).is_tensor:
                text = f"a comprehension over the tensor {quoted(traced.module, node.iter)}"
                hint = "Use operations on all rows at once, or tf.map_fn for one row at a time."
                yield finding_at(RULE, traced, node.iter, text, hint)
        elif isinstance(node, (ast.For, ast.While)):
            subject = node.test if isinstance(node, ast.While) else node.iter
            if inference.of(subject).is_tensor:
                yield from (
                    _growing(traced, node) if traced.autograph else _loop(traced, node, subject)
                )


def _loop(traced: Traced, node: ast.For | ast.While, subject: ast.expr) -> Iterator[Finding]:
    text = quoted(traced.module, subject)
    message = f"`for` over the tensor {text}, and {traced.no_autograph}"
    if isinstance(node, ast.While):
        message = f"`while` on the tensor {text}, and {traced.no_autograph}"
    hint = "Use tf.while_loop, tf.scan, or operations on all rows at once."
    yield finding_at(RULE, traced, node, message, hint)


def _growing(traced: Traced, node: ast.For | ast.While) -> Iterator[Finding]:
    """Report tensors that grow in each iteration of a loop that AutoGraph converts."""
    for part in ast.walk(node):
        if isinstance(part, ast.keyword) and part.arg == "shape_invariants":
            return
    for part in ast.walk(node):
        if not isinstance(part, ast.Assign) or not isinstance(part.value, ast.Call):
            continue
        target, call = part.targets[0], part.value
        last = getattr(call.func, "attr", "")
        if not isinstance(target, ast.Name) or last not in CONCATENATIONS or not call.args:
            continue
        joined = call.args[0].elts if isinstance(call.args[0], (ast.List, ast.Tuple)) else []
        if any(isinstance(item, ast.Name) and item.id == target.id for item in joined):
            message = f"`{target.id}` grows in a loop over tensors, but its shape must not change"
            hint = "Write the results to a tf.TensorArray and stack it after the loop."
            yield finding_at(RULE, traced, part, message, hint)
