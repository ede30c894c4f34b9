"""TPU103 where-indices."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.inference import infer
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import UNKNOWN_SIZE

RULE = Rule(
    code="TPU103",
    name="where-indices",
    severity=Severity.cost,
    summary="tf.where with one argument, or another operation that returns indices",
    rationale=f"{UNKNOWN_SIZE}. Use masks of the full shape instead.",
    bad="""\
import tensorflow as tf


@tf.function
def chosen(x):
    indices = tf.where(x[:, 0] > 0)
    return tf.gather_nd(x, indices)
""",
    good="""\
import tensorflow as tf


@tf.function
def chosen(x):
    return tf.where(x[:, :1] > 0, x, tf.zeros_like(x))
""",
)

INDEX_FUNCTIONS = {"where", "where_v2", "nonzero", "argwhere", "flatnonzero"}
OTHER_FUNCTIONS = {"image.non_max_suppression", "sparse.from_dense"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer(project, target)
    for traced, node, function in inference.array_calls:
        if not _returns_indices(node, function):
            continue
        value = argument(node, 0, "condition")
        value = value or (node.keywords[0].value if node.keywords else None)
        if value is None or inference.of(value).is_constant:
            continue
        message = f"the number of indices in {quoted(traced.module, node)} depends on tensor values"
        hint = "Keep the full shape: use tf.where(condition, x, y), or the mask as weights."
        if function == "image.non_max_suppression":
            hint = "Use tf.image.non_max_suppression_padded(…, pad_to_max_output_size=True)."
        yield finding_at(RULE, traced, node, message, hint)


def _returns_indices(node: ast.Call, function: str) -> bool:
    last = function.rpartition(".")[2]
    if function.startswith("raw_ops."):
        return last == "Where"
    if last in INDEX_FUNCTIONS and "." not in function:
        is_alone = len(node.args) + len(node.keywords) == 1
        is_alone = is_alone or {key.arg for key in node.keywords} == {"condition", "name"}
        return last not in ("where", "where_v2") or is_alone
    return function in OTHER_FUNCTIONS
