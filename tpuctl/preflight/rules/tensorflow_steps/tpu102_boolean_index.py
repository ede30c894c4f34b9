"""TPU102 boolean-index."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.inference import infer
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import UNKNOWN_SIZE, weighting_hint

RULE = Rule(
    code="TPU102",
    name="boolean-index",
    severity=Severity.cost,
    summary="Boolean tensor as an index in compiled code",
    rationale=f"{UNKNOWN_SIZE}, just like tf.boolean_mask.",
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
    inference = infer(project, target)
    for traced, node in inference.sites:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            mask = inference.mask_of(node)
            if mask is not None:
                message = f"{quoted(traced.module, node)} has a shape that depends on tensor values"
                hint = weighting_hint(traced, node, node.value, mask)
                yield finding_at(RULE, traced, node, message, hint)
