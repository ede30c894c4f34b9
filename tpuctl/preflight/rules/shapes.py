"""Shapes that depend on values (TPU101 to TPU106)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.abstract_values import Kind, Value
from tpuctl.preflight.analysis.inference import Inference, inferred
from tpuctl.preflight.analysis.library import is_boolean_name, short
from tpuctl.preflight.analysis.names import keras_name
from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.analysis.syntax import argument
from tpuctl.preflight.analysis.traced import Traced, is_taped
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules.places import at, shown
from tpuctl.preflight.rules.raggeds import ragged, ragged_method
from tpuctl.preflight.rules.weights import by_weights

__all__ = ["RULES", "find"]

_COST = (
    "How many there are depends on values, so XLA gives the result a dimension of unknown size, "
    "up to a bound, and carries the real size along. It compiles, but takes more time and memory: "
)
RULES: tuple[Rule, ...] = (
    Rule(
        "TPU101",
        "boolean-mask",
        Severity.cost,
        "tf.boolean_mask in code that is compiled",
        f"{_COST}in a small BERT 1.7 × the time and 1.9 × the memory of weights by the mask.",
        """\
import tensorflow as tf


@tf.function
def loss_of(errors, mask):
    return tf.reduce_mean(tf.boolean_mask(errors, mask))
""",
        """\
import tensorflow as tf


@tf.function
def loss_of(errors, mask):
    weights = tf.cast(mask, errors.dtype)
    return tf.reduce_sum(errors * weights) / tf.reduce_sum(weights)
""",
    ),
    Rule(
        "TPU102",
        "boolean-index",
        Severity.cost,
        "Indexing by a boolean tensor in code that is compiled",
        f"{_COST}the same as tf.boolean_mask.",
        """\
import tensorflow as tf


@tf.function
def positives(x):
    return tf.reduce_sum(x[x > 0])
""",
        """\
import tensorflow as tf


@tf.function
def positives(x):
    return tf.reduce_sum(tf.where(x > 0, x, 0.0))
""",
    ),
    Rule(
        "TPU103",
        "places-of-values",
        Severity.cost,
        "tf.where with one argument, or what finds places like it",
        f"{_COST}work by masks of the whole shape instead.",
        """\
import tensorflow as tf


@tf.function
def chosen(x):
    places = tf.where(x[:, 0] > 0)
    return tf.gather_nd(x, places)
""",
        """\
import tensorflow as tf


@tf.function
def chosen(x):
    return tf.where(x[:, :1] > 0, x, tf.zeros_like(x))
""",
    ),
    Rule(
        "TPU104",
        "distinct-values",
        Severity.cost,
        "tf.unique and its kin in code that is compiled",
        f"{_COST}do it in dataset.map, on the host. tf.unique_with_counts and setdiff1d are "
        "refused: XLA has not got them.",
        """\
import tensorflow as tf


@tf.function
def distinct(ids):
    return tf.unique(ids)[0]
""",
        """\
import tensorflow as tf


@tf.function
def present(ids):
    return tf.reduce_max(tf.one_hot(ids, 100), axis=0)
""",
    ),
    Rule(
        "TPU105",
        "shape-from-value",
        Severity.cost,
        "A shape that is made from a tensor's value",
        "A slice up to a tensor's value has a dimension of unknown size, which costs time and "
        "memory. Ranges, fills, reshapes and the like need the number when they are compiled; a "
        'TPU refuses one that is computed: "must be a compile-time constant". Sizes from '
        "tf.shape are known.",
        """\
import tensorflow as tf


@tf.function
def positions(mask):
    count = tf.reduce_sum(tf.cast(mask, tf.int32))
    return tf.range(count)
""",
        """\
import tensorflow as tf


@tf.function
def positions(mask):
    return tf.range(tf.shape(mask)[0])
""",
    ),
    Rule(
        "TPU106",
        "ragged",
        Severity.cost,
        "Ragged tensors in code that is compiled",
        "Rows of different lengths have shapes that depend on values. Some of it compiles with "
        "dimensions of unknown size; to_tensor, gathering and concatenating are refused: XLA has "
        "no such operations.",
        """\
import tensorflow as tf


@tf.function
def dense(flat, lengths):
    return tf.RaggedTensor.from_row_lengths(flat, lengths).to_tensor()
""",
        """\
import tensorflow as tf


@tf.function
def embedded(table, ids):
    return tf.gather(table, ids)


def batches(rows):
    data = tf.data.Dataset.from_tensor_slices(rows)
    return data.map(lambda row: row.to_tensor(shape=[8]))
""",
    ),
)
ONE_WHERE = {"where", "where_v2", "nonzero", "argwhere", "flatnonzero"}
FINDERS = {"image.non_max_suppression", "sparse.from_dense"}
KERAS_FINDERS = {"ops.nonzero", "ops.argwhere"}
DISTINCT = {"unique": "", "unique_with_counts": "UniqueWithCounts", "setdiff1d": "ListDiff"}
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
    """Yield what breaks these rules."""
    known = inferred(project, target)
    for one, node in known.sites():
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            yield from _indexed(known, one, node)
        elif isinstance(node, ast.Call):
            name = one.module.names.of(node.func)
            inside = short(name) if name is not None else None
            keras = keras_name(name)
            if inside is None and keras is not None and keras.startswith("ops."):
                inside = keras.removeprefix("ops.").removeprefix("numpy.")
            if isinstance(node.func, ast.Name) and node.func.id == "range" and name is None:
                yield from _sized(known, one, node, "range")
            if inside is not None:
                yield from _masked(known, one, node, inside)
                yield from _found(known, one, node, inside)
                yield from _distinct(known, one, node, inside)
                yield from _sized(known, one, node, inside)
                yield from ragged(known, one, node, inside)
            elif isinstance(node.func, ast.Attribute):
                yield from ragged_method(known, one, node, node.func)


# Masks --------------------------------------------------------------------------------------


def _masked(known: Inference, one: Traced, node: ast.Call, inside: str) -> Iterator[Finding]:
    if inside == "ragged.boolean_mask":
        message = f"{shown(one.module, node)} has rows whose lengths depend on values"
        hint = "Keep the whole shape and give what is masked the weight 0."
        yield at(one, node, "TPU106", Severity.cost, message, hint)
    if inside != "boolean_mask":
        return
    data, mask = argument(node, 0, "tensor"), argument(node, 1, "mask")
    if data is None or mask is None or _is_plain(known.of(mask)):
        return
    message = f"{shown(one.module, node)} has a shape that depends on values"
    yield at(one, node, "TPU101", Severity.cost, message, by_weights(one, node, data, mask))


def _is_plain(value: Value) -> bool:
    """Whether the compiler knows the value."""
    if value.is_container:
        return all(item.kind in (Kind.STATIC, Kind.KNOWN) for item in value.items or (value.inner,))
    return value.kind in (Kind.STATIC, Kind.KNOWN)


def _indexed(known: Inference, one: Traced, node: ast.Subscript) -> Iterator[Finding]:
    owner = known.of(node.value)
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for part in parts:
        if isinstance(part, ast.Slice):
            continue
        value = known.of(part)
        is_mask = value.kind is Kind.TENSOR and (
            (value.is_boolean and not value.is_structure)
            or (value.is_boolean and isinstance(part, ast.Name) and is_boolean_name(part.id))
        )
        if is_mask and owner.kind >= Kind.UNKNOWN and not owner.is_container:
            message = f"{shown(one.module, node)} has a shape that depends on values"
            hint = by_weights(one, node, node.value, part)
            yield at(one, node, "TPU102", Severity.cost, message, hint)
            return
    if owner.kind < Kind.KNOWN:
        return
    for part in parts:
        if isinstance(part, ast.Slice) and _is_open(known, one, part):
            message = f"the length of {shown(one.module, node)} depends on values"
            hint = "Slice up to a number that is known, and mask what is beyond."
            yield at(one, node, "TPU105", Severity.cost, message, hint)
            return


def _is_open(known: Inference, one: Traced, part: ast.Slice) -> bool:
    """Whether a slice's ends are computed."""
    return any(
        known.of(end).kind is Kind.TENSOR and (not known.of(end).is_structure or _is_name(end))
        for end in (part.lower, part.upper)
        if end is not None
    )


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


# Places -------------------------------------------------------------------------------------


def _found(known: Inference, one: Traced, node: ast.Call, inside: str) -> Iterator[Finding]:
    last = inside.rpartition(".")[2]
    if inside.startswith("raw_ops."):
        is_finder = last == "Where"
    elif last in ONE_WHERE and "." not in inside:
        is_finder = last not in ("where", "where_v2") or len(node.args) + len(node.keywords) == 1
        is_finder = is_finder or {key.arg for key in node.keywords} == {"condition", "name"}
    else:
        is_finder = inside in FINDERS
    if not is_finder:
        return
    given = argument(node, 0, "condition") or (node.keywords[0].value if node.keywords else None)
    if given is None or _is_plain(known.of(given)):
        return
    message = f"how many places {shown(one.module, node)} finds depends on values"
    hint = "Keep the whole shape: tf.where(condition, x, y), or a mask as weights."
    if inside == "image.non_max_suppression":
        hint = "Use tf.image.non_max_suppression_padded(…, pad_to_max_output_size=True)."
    yield at(one, node, "TPU103", Severity.cost, message, hint)


def _distinct(known: Inference, one: Traced, node: ast.Call, inside: str) -> Iterator[Finding]:
    if inside in DISTINCT:
        given = node.args[0] if node.args else None
        if given is not None and known.of(given).kind is Kind.STATIC:
            return
        lacking = DISTINCT[inside]
        message = f"how many {shown(one.module, node)} finds depends on values"
        severity = Severity.cost
        if lacking:
            message = f"{shown(one.module, node.func)} makes {lacking}, which XLA has not for a TPU"
            severity = Severity.error
        hint = "Do it in dataset.map, which runs on the host, or count by tf.one_hot."
        yield at(one, node, "TPU104", severity, message, hint)
    elif inside == "dynamic_partition":
        given = argument(node, 1, "partitions")
        if given is not None and not _is_plain(known.of(given)):
            message = f"the shapes of {shown(one.module, node)} depend on values"
            hint = "Compute all parts on the whole, and weigh each by a mask of its own."
            yield at(one, node, "TPU104", Severity.cost, message, hint)


# Sizes --------------------------------------------------------------------------------------


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
                yield at(one, node, "TPU105", severity, message, hint)
                return
    if inside in UNSAID and argument(node, *UNSAID[inside]) is None:
        lengths = node.args[0] if node.args else None
        if lengths is not None and not _is_plain(known.of(lengths)):
            missing = UNSAID[inside][1]
            message = f"{shown(one.module, node)} makes a shape from the largest value"
            hint = f"Say how many there are: {missing}=…"
            yield at(one, node, "TPU105", Severity.error, message, hint)
    elif inside == "math.bincount" and node.args and not _is_plain(known.of(node.args[0])):
        message = f"{shown(one.module, node)} makes a shape from the largest value"
        hint = "Sum tf.one_hot(values, how many there are) instead."
        yield at(one, node, "TPU105", Severity.error, message, hint)


def _is_computed(value: Value) -> bool:
    if value.is_container:
        return any(_is_computed(item) for item in value.items or ())
    return value.is_computed
