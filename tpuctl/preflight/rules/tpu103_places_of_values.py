"""TPU103 places-of-values."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.inference import inferred
from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.analysis.source_findings import at, shown
from tpuctl.preflight.analysis.syntax import argument
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import UNKNOWN_SIZE

__all__ = ["RULE", "find"]

RULE = Rule(
    code="TPU103",
    name="places-of-values",
    severity=Severity.cost,
    summary="tf.where with one argument, or what finds places like it",
    why=f"{UNKNOWN_SIZE}work by masks of the whole shape instead.",
    bad="""\
import tensorflow as tf


@tf.function
def chosen(x):
    places = tf.where(x[:, 0] > 0)
    return tf.gather_nd(x, places)
""",
    good="""\
import tensorflow as tf


@tf.function
def chosen(x):
    return tf.where(x[:, :1] > 0, x, tf.zeros_like(x))
""",
)

ONE_WHERE = {"where", "where_v2", "nonzero", "argwhere", "flatnonzero"}
FINDERS = {"image.non_max_suppression", "sparse.from_dense"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    known = inferred(project, target)
    for one, node, function in known.array_calls:
        if not _finds_places(node, function):
            continue
        given = argument(node, 0, "condition")
        given = given or (node.keywords[0].value if node.keywords else None)
        if given is None or known.of(given).is_constant:
            continue
        message = f"how many places {shown(one.module, node)} finds depends on values"
        hint = "Keep the whole shape: tf.where(condition, x, y), or a mask as weights."
        if function == "image.non_max_suppression":
            hint = "Use tf.image.non_max_suppression_padded(…, pad_to_max_output_size=True)."
        yield at(RULE, one, node, message, hint)


def _finds_places(node: ast.Call, function: str) -> bool:
    last = function.rpartition(".")[2]
    if function.startswith("raw_ops."):
        return last == "Where"
    if last in ONE_WHERE and "." not in function:
        is_alone = len(node.args) + len(node.keywords) == 1
        is_alone = is_alone or {key.arg for key in node.keywords} == {"condition", "name"}
        return last not in ("where", "where_v2") or is_alone
    return function in FINDERS
