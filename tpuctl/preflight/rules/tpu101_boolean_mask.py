"""TPU101 boolean-mask."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.preflight.analysis.inference import inferred
from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.analysis.source_findings import at, shown
from tpuctl.preflight.analysis.syntax import argument
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import UNKNOWN_SIZE, by_weights

__all__ = ["RULE", "find"]

RULE = Rule(
    code="TPU101",
    name="boolean-mask",
    severity=Severity.cost,
    summary="tf.boolean_mask in code that is compiled",
    why=(
        f"{UNKNOWN_SIZE}in a small BERT 1.7 × the time and 1.9 × the memory of weights by the mask."
    ),
    bad="""\
import tensorflow as tf


@tf.function
def loss_of(errors, mask):
    return tf.reduce_mean(tf.boolean_mask(errors, mask))
""",
    good="""\
import tensorflow as tf


@tf.function
def loss_of(errors, mask):
    weights = tf.cast(mask, errors.dtype)
    return tf.reduce_sum(errors * weights) / tf.reduce_sum(weights)
""",
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    known = inferred(project, target)
    for one, node, function in known.array_calls:
        if function != "boolean_mask":
            continue
        data, mask = argument(node, 0, "tensor"), argument(node, 1, "mask")
        if data is not None and mask is not None and not known.of(mask).is_constant:
            message = f"{shown(one.module, node)} has a shape that depends on values"
            yield at(RULE, one, node, message, by_weights(one, node, data, mask))
