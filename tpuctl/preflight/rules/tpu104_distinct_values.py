"""TPU104 distinct-values."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.abstract_values import Kind
from tpuctl.preflight.analysis.inference import Inference, infer
from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.syntax import argument
from tpuctl.preflight.analysis.traced import Traced
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import UNKNOWN_SIZE

__all__ = ["RULE", "find"]

RULE = Rule(
    code="TPU104",
    name="distinct-values",
    severity=Severity.cost,
    summary="tf.unique and its kin in code that is compiled",
    rationale=(
        f"{UNKNOWN_SIZE}do it in dataset.map, on the host. tf.unique_with_counts and setdiff1d are "
        "refused: XLA has not got them."
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
                message = f"the shapes of {quoted(traced.module, node)} depend on values"
                hint = "Compute all parts on the whole, and weigh each by a mask of its own."
                yield finding_at(RULE, traced, node, message, hint)


def _distinct(
    inference: Inference, traced: Traced, node: ast.Call, lacking: str
) -> Iterator[Finding]:
    """`lacking` is the operation that XLA has not, empty where it has."""
    value = node.args[0] if node.args else None
    if value is not None and inference.of(value).kind is Kind.STATIC:
        return
    message = f"how many {quoted(traced.module, node)} finds depends on values"
    severity = Severity.cost
    if lacking:
        message = f"{quoted(traced.module, node.func)} makes {lacking}, which XLA has not for a TPU"
        severity = Severity.error
    hint = "Do it in dataset.map, which runs on the host, or count by tf.one_hot."
    yield finding_at(RULE, traced, node, message, hint, severity=severity)
