"""TPU102 boolean-index."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.inference import inferred
from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.analysis.source_findings import at, shown
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import UNKNOWN_SIZE, by_weights

__all__ = ["RULE", "find"]

RULE = Rule(
    code="TPU102",
    name="boolean-index",
    severity=Severity.cost,
    summary="Indexing by a boolean tensor in code that is compiled",
    why=f"{UNKNOWN_SIZE}the same as tf.boolean_mask.",
    bad="""\
import tensorflow as tf


@tf.function
def positives(x):
    return tf.reduce_sum(x[x > 0])
""",
    good="""\
import tensorflow as tf


@tf.function
def positives(x):
    return tf.reduce_sum(tf.where(x > 0, x, 0.0))
""",
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    known = inferred(project, target)
    for one, node in known.sites:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            mask = known.mask_of(node)
            if mask is not None:
                message = f"{shown(one.module, node)} has a shape that depends on values"
                hint = by_weights(one, node, node.value, mask)
                yield at(RULE, one, node, message, hint)
