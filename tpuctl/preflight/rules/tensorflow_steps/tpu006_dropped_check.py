"""TPU006 dropped-check."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.inference import Inference, infer
from tpuctl.preflight.analysis.tracing.traced import Traced
from tpuctl.preflight.analysis.values.abstract_values import Kind, Value
from tpuctl.preflight.analysis.values.library import short
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU006",
    name="dropped-check",
    severity=Severity.risk,
    summary="Check that is silently dropped on a TPU",
    rationale=(
        "XLA drops `tf.debugging.assert_…`, `tf.Assert` and `check_numerics`, so errors that they "
        "should catch go unnoticed."
    ),
    bad="""\
import tensorflow as tf


@tf.function
def step(x):
    loss = tf.reduce_mean(x)
    tf.debugging.assert_less(loss, 1e4)
    return loss
""",
    good="""\
import tensorflow as tf


@tf.function
def step(x):
    return tf.reduce_mean(x)


def train(x):
    tf.debugging.assert_less(step(x), 1e4)
""",
)

# Checks of types and ranks run during tracing.
TRACED_CHECKS = {"assert_rank", "assert_rank_at_least", "assert_rank_in", "assert_type"}
TRACED_CHECKS |= {"assert_scalar", "assert_same_float_dtype", "assert_shapes", "assert_integer"}
TRACED_CHECKS |= {"assert_proper_iterable"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer(project, target)
    for traced, node in inference.sites:
        if isinstance(node, ast.Call):
            yield from _dropped(inference, traced, node)


def _dropped(inference: Inference, traced: Traced, node: ast.Call) -> Iterator[Finding]:
    name = traced.module.names.of(node.func)
    function = short(name) if name is not None else None
    if function is None:
        return
    last = function.rpartition(".")[2]
    is_check = function == "Assert" or (
        function.startswith(("debugging.", "assert_"))
        and last.startswith(("assert_", "check_numerics", "Assert"))
        and last not in TRACED_CHECKS
    )
    if not is_check or last == "enable_check_numerics":
        return
    parts = [inference.of(part) for part in node.args[:2]]
    if not any(_is_computed(part) for part in parts):
        return  # known during tracing
    message = f"{quoted(traced.module, node.func)} is dropped on a TPU"
    hint = "Return the value from the step and check it on the host."
    yield finding_at(RULE, traced, node, message, hint)


def _is_computed(value: Value) -> bool:
    if value.is_container:
        return any(item.kind >= Kind.TENSOR for item in value.items or (value.inner,))
    return value.kind >= Kind.TENSOR
