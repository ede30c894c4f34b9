"""TPU104 distinct-values."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.inference import Inference, infer
from tpuctl.preflight.analysis.tracing.traced import Traced
from tpuctl.preflight.analysis.values.abstract_values import Kind
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import UNKNOWN_SIZE

RULE = Rule(
    code="TPU104",
    name="distinct-values",
    severity=Severity.cost,
    summary="tf.unique or a similar operation in compiled code",
    rationale=(
        f"{UNKNOWN_SIZE}. Do it in dataset.map, on the host. XLA does not support "
        "tf.unique_with_counts and setdiff1d at all."
    ),
    bad="""\
import tensorflow as tf


@tf.function
def distinct(ids):
    return tf.unique(ids)[0]
""",
    good="""\
import tensorflow as tf


@tf.function
def present(ids):
    return tf.reduce_max(tf.one_hot(ids, 100), axis=0)
""",
)

DISTINCT = {"unique": "", "unique_with_counts": "UniqueWithCounts", "setdiff1d": "ListDiff"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer(project, target)
    for traced, node, function in inference.array_calls:
        if function in DISTINCT:
            yield from _distinct(inference, traced, node, DISTINCT[function])
        elif function == "dynamic_partition":
            value = argument(node, 1, "partitions")
            if value is not None and not inference.of(value).is_constant:
                message = f"the shapes of {quoted(traced.module, node)} depend on tensor values"
                hint = "Compute every part at full shape, and weight each with its own mask."
                yield finding_at(RULE, traced, node, message, hint)


def _distinct(
    inference: Inference, traced: Traced, node: ast.Call, unsupported: str
) -> Iterator[Finding]:
    """`unsupported` is the operation that XLA does not support, if any."""
    value = node.args[0] if node.args else None
    if value is not None and inference.of(value).kind is Kind.STATIC:
        return
    message = f"the size of {quoted(traced.module, node)} depends on tensor values"
    severity = Severity.cost
    if unsupported:
        text = quoted(traced.module, node.func)
        message = f"{text} creates {unsupported}, which XLA does not support on TPUs"
        severity = Severity.error
    hint = "Do it in dataset.map, which runs on the host, or count with tf.one_hot."
    yield finding_at(RULE, traced, node, message, hint, severity=severity)
