"""TPU105 shape-from-value."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.abstract_values import Kind, Value
from tpuctl.preflight.analysis.inference import Inference, inferred
from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.analysis.source_findings import at, shown
from tpuctl.preflight.analysis.syntax import argument
from tpuctl.preflight.analysis.traced import Traced, is_taped
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

__all__ = ["RULE", "find"]

RULE = Rule(
    code="TPU105",
    name="shape-from-value",
    severity=Severity.cost,
    summary="A shape that is made from a tensor's value",
    why=(
        "A slice up to a tensor's value has a dimension of unknown size, which costs time and "
        "memory. Ranges, fills, reshapes and the like need the number when they are compiled; a "
        'TPU refuses one that is computed: "must be a compile-time constant". Sizes from '
        "tf.shape are known."
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

# What makes a shape from a value: where it stands among the arguments, and how it is called.
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
# These take their size from the values where it is not said.
UNSAID = {"sequence_mask": (1, "maxlen"), "math.confusion_matrix": (2, "num_classes")}


def find(project: Project, target: Target) -> Iterator[Finding]:
    known = inferred(project, target)
    for one, node in known.sites:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            yield from _sliced(known, one, node)
        elif isinstance(node, ast.Call):
            name = one.module.names.of(node.func)
            if isinstance(node.func, ast.Name) and node.func.id == "range" and name is None:
                yield from _sized(known, one, node, "range")
    for one, node, function in known.array_calls:
        yield from _sized(known, one, node, function)


def _sliced(known: Inference, one: Traced, node: ast.Subscript) -> Iterator[Finding]:
    if known.of(node.value).kind < Kind.KNOWN or known.mask_of(node) is not None:
        return
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if any(isinstance(part, ast.Slice) and _is_open(known, part) for part in parts):
        message = f"the length of {shown(one.module, node)} depends on values"
        hint = "Slice up to a number that is known, and mask what is beyond."
        yield at(RULE, one, node, message, hint)


def _is_open(known: Inference, part: ast.Slice) -> bool:
    """Whether a slice's ends are computed."""
    return any(
        known.of(end).kind is Kind.TENSOR
        and (not known.of(end).is_structure or isinstance(end, ast.Name))
        for end in (part.lower, part.upper)
        if end is not None
    )


def _sized(known: Inference, one: Traced, node: ast.Call, inside: str) -> Iterator[Finding]:
    parent = one.module.parents.get(node)
    is_loop = isinstance(parent, ast.For) and parent.iter is node
    if is_loop and (not one.autograph or one.is_differentiated or is_taped(one.module, node)):
        return  # told of the loop
    for table, severity in ((SIZED, Severity.error), (SLICED, Severity.cost)):
        for number, name in table.get(inside, ()):
            given = argument(node, number, name)
            if inside == "range" and given is None:
                continue
            if given is not None and _is_computed(known.of(given)):
                message = f"{shown(one.module, node)} makes a shape from the value of "
                message += shown(one.module, given)
                hint = "Use a number that is known, such as the largest there can be, and a mask."
                yield at(RULE, one, node, message, hint, severity=severity)
                return
    if inside in UNSAID and argument(node, *UNSAID[inside]) is None:
        lengths = node.args[0] if node.args else None
        if lengths is not None and not known.of(lengths).is_constant:
            missing = UNSAID[inside][1]
            message = f"{shown(one.module, node)} makes a shape from the largest value"
            hint = f"Say how many there are: {missing}=…"
            yield at(RULE, one, node, message, hint, severity=Severity.error)
    elif inside == "math.bincount" and node.args and not known.of(node.args[0]).is_constant:
        message = f"{shown(one.module, node)} makes a shape from the largest value"
        hint = "Sum tf.one_hot(values, how many there are) instead."
        yield at(RULE, one, node, message, hint, severity=Severity.error)


def _is_computed(value: Value) -> bool:
    if value.is_container:
        return any(_is_computed(item) for item in value.items or ())
    return value.is_computed
