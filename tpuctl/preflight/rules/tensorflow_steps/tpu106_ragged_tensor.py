"""TPU106 ragged-tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.inference import Inference, infer
from tpuctl.preflight.analysis.tracing.traced import Traced
from tpuctl.preflight.analysis.values.abstract_values import Kind
from tpuctl.preflight.analysis.values.library import CONSTANT_ROWS, array_function
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU106",
    name="ragged-tensor",
    severity=Severity.cost,
    summary="Ragged tensors in compiled code",
    rationale=(
        "Rows of different lengths have shapes that depend on tensor values. Some operations "
        "compile with dynamic dimensions; XLA does not support others, such as to_tensor, gather "
        "and concat."
    ),
    bad="""\
import tensorflow as tf


@tf.function
def dense(flat, lengths):
    return tf.RaggedTensor.from_row_lengths(flat, lengths).to_tensor()
""",
    good="""\
import tensorflow as tf


@tf.function
def embedded(table, ids):
    return tf.gather(table, ids)


def batches(rows):
    data = tf.data.Dataset.from_tensor_slices(rows)
    return data.map(lambda row: row.to_tensor(shape=[8]))
""",
)

RAGGED_ERRORS = {"to_tensor", "to_sparse", "bounding_shape"}
RAGGED_REFUSED = {"gather", "concat", "stack", "map_fn", "gather_nd", "tile", "expand_dims"}
DENSE = "Convert it to a dense tensor in dataset.map, on the host: rows.to_tensor(shape=[…])."


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer(project, target)
    for traced, node in inference.sites:
        if isinstance(node, ast.Call):
            function = array_function(traced.module.names.of(node.func))
            if function is not None:
                yield from _function(inference, traced, node, function)
            elif isinstance(node.func, ast.Attribute):
                yield from _method(inference, traced, node, node.func)


def _function(
    inference: Inference, traced: Traced, node: ast.Call, operation: str
) -> Iterator[Finding]:
    last = operation.rpartition(".")[2]
    unsupported = {"ragged.range": "RaggedRange", "ragged.cross": "RaggedCross"}
    if operation == "ragged.boolean_mask":
        message = f"{quoted(traced.module, node)} has rows whose lengths depend on tensor values"
        hint = "Keep the full shape and give masked elements weight 0."
        yield finding_at(RULE, traced, node, message, hint)
    elif operation == "RaggedTensor.from_tensor" and (
        {key.arg for key in node.keywords} & {"lengths", "padding"} or len(node.args) > 1
    ):
        message = f"{quoted(traced.module, node)} has rows whose lengths depend on tensor values"
        hint = "Keep the full shape and give padding weight 0."
        yield finding_at(RULE, traced, node, message, hint)
    elif operation == "RaggedTensor.from_value_rowids":
        message = f"{quoted(traced.module, node)} computes a shape from the largest value"
        yield finding_at(RULE, traced, node, message, DENSE, severity=Severity.error)
    elif operation in unsupported:
        text = quoted(traced.module, node)
        message = f"{text} creates {unsupported[operation]}, which XLA does not support on TPUs"
        yield finding_at(RULE, traced, node, message, DENSE, severity=Severity.error)
    elif last.startswith("reduce_") and (len(node.args) > 1 or node.keywords):
        value = inference.of(node.args[0] if node.args else None)
        if value.kind is Kind.RAGGED and value.name != CONSTANT_ROWS:
            message = f"{quoted(traced.module, node)} computes a shape from the largest value"
            yield finding_at(RULE, traced, node, message, DENSE, severity=Severity.error)
    elif last in RAGGED_REFUSED and _takes_ragged(inference, node):
        message = (
            f"{quoted(traced.module, node)} on a ragged tensor, which XLA does not support on TPUs"
        )
        yield finding_at(RULE, traced, node, message, DENSE, severity=Severity.error)


def _takes_ragged(inference: Inference, node: ast.Call) -> bool:
    values = [inference.of(arg) for arg in node.args]
    return any(
        value.kind is Kind.RAGGED or any(item.kind is Kind.RAGGED for item in value.items or ())
        for value in values
    )


def _method(
    inference: Inference, traced: Traced, node: ast.Call, func: ast.Attribute
) -> Iterator[Finding]:
    if inference.of(func.value).kind is Kind.RAGGED and func.attr in RAGGED_ERRORS:
        message = (
            f"{quoted(traced.module, node)} on a ragged tensor, which XLA does not support on TPUs"
        )
        yield finding_at(RULE, traced, node, message, DENSE, severity=Severity.error)
