"""TPU105 shape-from-value."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tracing.inference import Inference, infer
from tpuctl.preflight.analysis.tracing.traced import Traced, is_taped
from tpuctl.preflight.analysis.values.abstract_values import Kind, Value
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU105",
    name="shape-from-value",
    severity=Severity.cost,
    summary="Shape computed from the value of a tensor",
    rationale=(
        "A slice whose end is a tensor's value has a dynamic dimension, which costs time and "
        "memory. Ranges, fills, reshapes and the like need their size at compile time; a computed "
        'one fails with "must be a compile-time constant". Sizes from tf.shape are known at '
        "compile time."
    ),
    bad="""\
import tensorflow as tf


@tf.function
def positions(mask):
    count = tf.reduce_sum(tf.cast(mask, tf.int32))
    return tf.range(count)
""",
    good="""\
import tensorflow as tf


@tf.function
def positions(mask):
    return tf.range(tf.shape(mask)[0])
""",
)

# Functions that compute a shape from a value: the position and the name of that argument.
SIZED = {
    "range": ((0, "start"), (1, "limit"), (2, "delta")),
    "zeros": ((0, "shape"),),
    "ones": ((0, "shape"),),
    "fill": ((0, "dims"),),
    "eye": ((0, "num_rows"), (1, "num_columns")),
    "linspace": ((2, "num"),),
    "one_hot": ((1, "depth"),),
    "reshape": ((1, "shape"),),
    "tile": ((1, "multiples"),),
    "repeat": ((1, "repeats"),),
    "broadcast_to": ((1, "shape"),),
    "pad": ((1, "paddings"),),
    "split": ((1, "num_or_size_splits"),),
    "scatter_nd": ((2, "shape"),),
    "sequence_mask": ((1, "maxlen"),),
    "random.uniform": ((0, "shape"),),
    "random.normal": ((0, "shape"),),
    "random.truncated_normal": ((0, "shape"),),
    "random.stateless_uniform": ((0, "shape"),),
    "random.stateless_normal": ((0, "shape"),),
    "math.unsorted_segment_sum": ((2, "num_segments"),),
    "math.unsorted_segment_mean": ((2, "num_segments"),),
    "math.unsorted_segment_max": ((2, "num_segments"),),
    "math.unsorted_segment_min": ((2, "num_segments"),),
    "math.confusion_matrix": ((2, "num_classes"),),
    "TensorArray": ((1, "size"),),
    "image.resize": ((1, "size"),),
}
SLICED = {"slice": ((2, "size"),), "math.top_k": ((1, "k"),), "nn.top_k": ((1, "k"),)}
# Functions whose default size is the largest value.
DEFAULT_SIZES = {"sequence_mask": (1, "maxlen"), "math.confusion_matrix": (2, "num_classes")}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer(project, target)
    for traced, node in inference.sites:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            yield from _sliced(inference, traced, node)
        elif isinstance(node, ast.Call):
            name = traced.module.names.of(node.func)
            if isinstance(node.func, ast.Name) and node.func.id == "range" and name is None:
                yield from _sized(inference, traced, node, "range")
    for traced, node, function in inference.array_calls:
        yield from _sized(inference, traced, node, function)


def _sliced(inference: Inference, traced: Traced, node: ast.Subscript) -> Iterator[Finding]:
    if inference.of(node.value).kind < Kind.KNOWN or inference.mask_of(node) is not None:
        return
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if any(isinstance(part, ast.Slice) and _has_computed_end(inference, part) for part in parts):
        message = f"the length of {quoted(traced.module, node)} depends on tensor values"
        hint = "Slice to a fixed length and mask the rest."
        yield finding_at(RULE, traced, node, message, hint)


def _has_computed_end(inference: Inference, part: ast.Slice) -> bool:
    """Whether a slice's ends are computed."""
    return any(
        inference.of(end).kind is Kind.TENSOR
        and (not inference.of(end).is_structure or isinstance(end, ast.Name))
        for end in (part.lower, part.upper)
        if end is not None
    )


def _sized(
    inference: Inference, traced: Traced, node: ast.Call, operation: str
) -> Iterator[Finding]:
    parent = traced.module.parents.get(node)
    is_loop = isinstance(parent, ast.For) and parent.iter is node
    if is_loop and (
        not traced.autograph or traced.is_differentiated or is_taped(traced.module, node)
    ):
        return  # reported for the loop
    for table, severity in ((SIZED, Severity.error), (SLICED, Severity.cost)):
        for number, name in table.get(operation, ()):
            value = argument(node, number, name)
            if operation == "range" and value is None:
                continue
            if value is not None and _is_computed(inference.of(value)):
                message = f"{quoted(traced.module, node)} computes a shape from the value of "
                message += quoted(traced.module, value)
                hint = "Use a fixed number, such as the largest possible one, and a mask."
                yield finding_at(RULE, traced, node, message, hint, severity=severity)
                return
    if operation in DEFAULT_SIZES and argument(node, *DEFAULT_SIZES[operation]) is None:
        lengths = node.args[0] if node.args else None
        if lengths is not None and not inference.of(lengths).is_constant:
            missing = DEFAULT_SIZES[operation][1]
            message = f"{quoted(traced.module, node)} computes a shape from the largest value"
            hint = f"Set the size: {missing}=…"
            yield finding_at(RULE, traced, node, message, hint, severity=Severity.error)
    elif operation == "math.bincount" and node.args and not inference.of(node.args[0]).is_constant:
        message = f"{quoted(traced.module, node)} computes a shape from the largest value"
        hint = "Sum tf.one_hot(values, depth) instead."
        yield finding_at(RULE, traced, node, message, hint, severity=Severity.error)


def _is_computed(value: Value) -> bool:
    if value.is_container:
        return any(_is_computed(item) for item in value.items or ())
    return value.is_computed
