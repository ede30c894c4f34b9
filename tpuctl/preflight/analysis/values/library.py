"""Abstract results of TensorFlow, Keras and NumPy functions, as far as the rules need them."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.values.abstract_values import (
    KNOWN,
    NUMBER,
    STATIC,
    STRUCTURE,
    TENSOR,
    UNKNOWN,
    Kind,
    Value,
    container,
)

BOOLEAN = Value(Kind.TENSOR, is_boolean=True)
RAGGED = Value(Kind.RAGGED)
CONSTANT_ROWS = "rows of constant lengths"  # the `name` of such a ragged tensor
SPARSE = Value(Kind.SPARSE)

# TensorFlow functions that return Python values during tracing, without `tensorflow.`.
STATIC_FUNCTIONS = {
    "get_static_value", "is_tensor", "is_symbolic_tensor", "executing_eagerly", "inside_function",
    "as_dtype", "TensorShape", "TensorSpec", "RaggedTensorSpec", "name_scope", "device",
    "control_dependencies", "no_op", "group", "type_spec_from_value", "broadcast_static_shape",
    "init_scope", "print", "random.set_seed", "get_logger", "compat.as_str", "compat.as_bytes",
    "compat.as_text", "nest.assert_same_structure", "nest.is_nested", "Assert",
    "compat.dimension_value", "compat.dimension_at_index", "dimension_value", "dimension_at_index",
    "executing_eagerly_outside_functions", "control_flow_v2_enabled", "resource_variables_enabled",
    "compat.forward_compatible", "debugging.is_numeric_tensor", "is_numeric_tensor",
    "constant_value",
}  # fmt: skip
STATIC_MODULES = (
    "debugging.assert", "config.", "io.gfile.", "summary.", "profiler.", "version.",
    "autograph.", "dtypes.", "experimental.dtensor.", "sysconfig.", "test.",
)  # fmt: skip
LIST_FUNCTIONS = {
    "split", "unstack", "meshgrid", "nest.flatten", "dynamic_partition", "gradients",
    "broadcast_dynamic_list", "linalg.svd", "linalg.qr", "linalg.eigh", "nn.moments",
    "nn.weighted_moments", "math.top_k", "nn.top_k", "unique", "unique_with_counts",
    "image.non_max_suppression_padded", "image.non_max_suppression_with_scores",
    "linalg.slogdet", "linalg.lu", "clip_by_global_norm", "nn.fused_batch_norm", "while_loop",
    "nn.ctc_greedy_decoder", "nn.ctc_beam_search_decoder", "nn.max_pool_with_argmax",
    "setdiff1d", "image.combined_non_max_suppression", "math.approx_max_k",
}  # fmt: skip
BOOLEAN_FUNCTIONS = {
    "equal", "not_equal", "greater", "greater_equal", "less", "less_equal", "logical_and",
    "logical_or", "logical_not", "logical_xor", "is_nan", "is_inf", "is_finite", "isnan", "isinf",
    "isfinite", "reduce_any", "reduce_all", "in_top_k", "is_non_decreasing", "sequence_mask",
    "is_strictly_increasing", "approximate_equal", "regex_full_match", "any", "all", "isclose",
}  # fmt: skip
# Functions whose result is boolean if their argument is.
KEEPS_BOOLEAN = {
    "reshape", "squeeze", "expand_dims", "transpose", "gather", "gather_nd", "tile", "identity",
    "stop_gradient", "repeat", "reverse", "roll", "pad", "slice", "broadcast_to", "ensure_shape",
    "convert_to_tensor", "boolean_mask", "concat", "stack", "zeros_like", "ones_like", "constant",
    "flatten", "ravel", "strided_slice", "swapaxes", "moveaxis", "vectorized_map", "map_fn",
}  # fmt: skip
SHAPE_FUNCTIONS = {"shape", "size", "rank", "shape_n", "zeros_like", "ones_like", "ndims"}
RAGGED_MODULES = ("ragged.", "RaggedTensor.")
RAGGED_FUNCTIONS = {"strings.split", "strings.bytes_split", "strings.unicode_split",
                    "strings.unicode_decode", "strings.ngrams"}  # fmt: skip
SPARSE_FUNCTIONS = {
    "SparseTensor", "IndexedSlices", "sparse.from_dense", "sparse.add", "sparse.concat",
    "sparse.reorder", "sparse.reshape", "sparse.retain", "sparse.slice", "sparse.transpose",
    "sparse.cross", "sparse.cross_hashed", "sparse.fill_empty_rows", "sparse.softmax",
    "sparse.minimum", "sparse.maximum", "sparse.map_values", "sparse.expand_dims",
    "sets.intersection", "sets.union", "sets.difference", "sparse.bincount",
}  # fmt: skip
STATIC_ATTRIBUTES = {
    "shape", "dtype", "ndim", "name", "device", "graph", "rank", "op", "dtypes", "ragged_rank",
}  # fmt: skip
STATIC_METHODS = {
    "get_shape", "set_shape", "as_list", "is_fully_defined", "keys", "numpy", "item", "tolist",
}  # fmt: skip
# Attributes of tensors and model outputs that are tensors.
TENSOR_ATTRIBUTES = {
    "loss", "logits", "last_hidden_state", "pooler_output", "hidden_states", "attentions",
    "prediction_logits", "seq_relationship_logits", "start_logits", "end_logits", "T", "values",
    "indices", "flat_values", "row_splits", "row_lengths", "encoder_last_hidden_state",
}  # fmt: skip
MASK_PREFIXES = ("mask", "valid", "is_", "keep", "selected", "positive", "negative", "condition")
KERAS_STATIC = {"backend.int_shape", "backend.floatx", "backend.epsilon", "backend.ndim",
               "backend.dtype", "backend.learning_phase", "backend.image_data_format",
               "backend.is_keras_tensor", "backend.backend", "ops.is_tensor", "ops.dtype",
               "ops.ndim", "config.floatx", "config.epsilon", "backend.get_uid",
               "backend.is_sparse", "utils.get_source_inputs"}  # fmt: skip
TENSOR_LIBRARIES = ("tensorflow_addons.", "tensorflow_probability.", "einops.")


def short(name: str) -> str | None:
    """The name without `tensorflow.`, such as `math.top_k`; None outside TensorFlow."""
    if not name.startswith("tensorflow.") or keras_name(name) is not None:
        return None
    name = name.removeprefix("tensorflow.")
    for prefix in ("compat.v1.", "experimental.numpy."):
        if name.startswith(prefix) and name not in LIST_FUNCTIONS:
            name = name.removeprefix(prefix)
    return name


@cache
def array_function(name: str | None) -> str | None:
    """Like `short`, but also for Keras operations: `where` for "keras.ops.where"."""
    short_name = short(name) if name is not None else None
    keras = keras_name(name)
    if short_name is None and keras is not None and keras.startswith("ops."):
        short_name = keras.removeprefix("ops.").removeprefix("numpy.")
    return short_name


def is_boolean_name(name: str) -> bool:
    """Whether a tensor of that name is most likely boolean."""
    name = name.lower()
    return name.startswith(MASK_PREFIXES) or name.endswith(("mask", "_valid", "masks"))


def result_of(
    name: str, arguments: Sequence[Value], keywords: Mapping[str, Value], node: ast.Call
) -> Value:
    """The result of a library function for these arguments."""
    short_name = short(name)
    if short_name is not None:
        return _tensorflow(short_name, arguments, keywords, node)
    keras = keras_name(name)
    if keras is not None:
        return _keras(keras, name, arguments, keywords, node)
    all_arguments = [*arguments, *keywords.values()]
    if name.startswith("numpy."):
        return STATIC
    if name.startswith("math."):
        return NUMBER
    if name.startswith("tqdm.") and arguments:
        return container([NUMBER]) if name.endswith(".trange") else arguments[0]
    if name.endswith("shape_list"):
        return container([STATIC])  # mostly Python numbers
    if name.startswith(TENSOR_LIBRARIES) and any(value.is_symbolic for value in all_arguments):
        return STRUCTURE
    last = name.rpartition(".")[2]
    return Value(Kind.OBJECT, name=name) if last[:1].isupper() else UNKNOWN


def _tensorflow(
    name: str, arguments: Sequence[Value], keywords: Mapping[str, Value], node: ast.Call
) -> Value:
    first = arguments[0] if arguments else next(iter(keywords.values()), STATIC)
    last = name.rpartition(".")[2]
    is_private = name.startswith("python.")  # `tensor_util.is_tensor`
    if (last if is_private else name) in STATIC_FUNCTIONS or name.startswith(STATIC_MODULES):
        return STATIC
    if name in SPARSE_FUNCTIONS:
        return SPARSE
    if name in RAGGED_FUNCTIONS or name.startswith(RAGGED_MODULES):
        is_known = (
            all(_flat(value).kind is Kind.STATIC for value in arguments[1:]) and len(arguments) > 1
        )
        return replace(RAGGED, name=CONSTANT_ROWS if is_known else "")
    if name in LIST_FUNCTIONS:
        return container([TENSOR])
    if name == "Variable":
        return TENSOR
    if name.startswith(("data.", "distribute.", "lookup.", "train.", "tpu.", "saved_model.")):
        return Value(Kind.OBJECT, name=f"tensorflow.{name}")
    if last[:1].isupper():
        return Value(Kind.OBJECT, name=f"tensorflow.{name}")
    if first.kind is Kind.RAGGED and last not in SHAPE_FUNCTIONS:
        return (
            RAGGED
            if not last.startswith("reduce_") or len(arguments) + len(keywords) > 1
            else TENSOR
        )
    if last in SHAPE_FUNCTIONS:
        return KNOWN
    if name in ("nest.map_structure", "map_fn", "vectorized_map", "scan", "foldl", "foldr"):
        return STRUCTURE
    if name in ("cond", "case", "switch_case"):
        return STRUCTURE
    return _of_arguments(name, last, arguments, keywords, node)


def _of_arguments(
    name: str, last: str, arguments: Sequence[Value], keywords: Mapping[str, Value], node: ast.Call
) -> Value:
    is_boolean = last in BOOLEAN_FUNCTIONS and not _has_other_type(node)
    if last in KEEPS_BOOLEAN:
        is_boolean = any(value.is_boolean for value in arguments[:1]) or any(
            value.is_boolean for value in (arguments[0].items or () if arguments else ())
        )
    if last == "where" and len(arguments) + len(keywords) >= 3:
        is_boolean = any(value.is_boolean for value in arguments[1:])
    is_boolean = is_boolean or _is_cast(node)
    all_arguments = [*arguments, *keywords.values()]
    is_random = name.startswith("random.") or last.startswith(("random_", "sample_"))
    symbolic = [_flat(value) for value in all_arguments]
    if not is_random and all(value.kind <= Kind.KNOWN for value in symbolic):
        return replace(KNOWN, is_boolean=is_boolean)
    return replace(TENSOR, is_boolean=is_boolean)


def _flat(value: Value) -> Value:
    """A value, or the joined value of a container's elements."""
    return value.inner if value.is_container else value


def _is_cast(node: ast.Call) -> bool:
    """Whether the requested dtype is boolean."""
    dtypes = [keyword.value for keyword in node.keywords if keyword.arg == "dtype"] + node.args[1:2]
    return any(
        (isinstance(dtype, ast.Attribute) and dtype.attr in ("bool", "bool_"))
        or (isinstance(dtype, ast.Name) and dtype.id == "bool")
        or (isinstance(dtype, ast.Constant) and dtype.value == "bool")
        for dtype in dtypes
    )


def _has_other_type(node: ast.Call) -> bool:
    return any(keyword.arg == "dtype" for keyword in node.keywords) and not _is_cast(node)


def _keras(
    keras: str, name: str, arguments: Sequence[Value], keywords: Mapping[str, Value], node: ast.Call
) -> Value:
    if keras in KERAS_STATIC:
        return STATIC
    module, _, last = keras.rpartition(".")
    if keras in ("ops.shape", "backend.shape"):
        return container([KNOWN])
    if module in ("ops", "backend", "ops.numpy", "ops.nn"):
        return _tensorflow(last, arguments, keywords, node)
    if keras == "Input":
        return Value(Kind.OBJECT, name=name)
    if last[:1].islower():
        if module.startswith(("losses", "metrics", "activations")) and last not in ("get",):
            return TENSOR if any(value.is_symbolic for value in arguments) else STATIC
        if module.startswith("random"):
            return TENSOR
    return Value(Kind.OBJECT, name=name)


def attribute_of(value: Value, name: str) -> Value:
    """The value of an attribute."""
    if name in STATIC_ATTRIBUTES:
        return STATIC
    if value.kind is Kind.RAGGED:
        return TENSOR if name in TENSOR_ATTRIBUTES else UNKNOWN
    if value.kind is Kind.SPARSE:
        return TENSOR
    if value.is_symbolic:
        if name in TENSOR_ATTRIBUTES:
            return value if name in ("T", "values", "indices") else STRUCTURE
        return UNKNOWN
    if value.kind is Kind.OBJECT:
        if name in ("trainable_variables", "trainable_weights", "weights", "variables"):
            return container([STRUCTURE])
        if name == "iterations" or (name == "loss" and "ModelOutput" in value.name):
            return TENSOR
        if name in ("num_replicas_in_sync", "replica_id_in_sync_group"):
            return STATIC
        return UNKNOWN
    if value.is_container:
        return value.inner if name in ("values", "indices", "y", "idx", "count") else UNKNOWN
    return STATIC if value.kind is Kind.STATIC else UNKNOWN


def method_result(value: Value, name: str, arguments: Sequence[Value]) -> Value:
    """The result of a method call."""
    if name in STATIC_METHODS:
        return STATIC
    if value.kind is Kind.RAGGED:
        return {"to_tensor": TENSOR, "to_sparse": SPARSE}.get(name, TENSOR)
    if value.kind is Kind.SPARSE:
        return value
    if value.is_container:
        if name in ("items",):
            return container([Value(Kind.STATIC, items=(STATIC, value.inner))])
        if name == "values":
            return container([value.inner])
        return value.inner if name in ("get", "pop") else STATIC
    if value.is_symbolic:
        if name == "items":
            return container([Value(Kind.STATIC, items=(STATIC, value))])
        return replace(value, is_boolean=value.is_boolean and name != "sum")
    if value.kind is Kind.OBJECT:
        return _object_method(value, name, arguments)
    if value.kind is Kind.STATIC:
        return STATIC
    return UNKNOWN


def _object_method(value: Value, name: str, arguments: Sequence[Value]) -> Value:
    kind = value.name
    if kind.startswith("tensorflow.TensorArray"):
        return value if name in ("write", "scatter", "unstack", "split") else TENSOR
    if kind.startswith("tensorflow.GradientTape"):
        return container([STRUCTURE]) if name == "gradient" else TENSOR
    if kind.startswith("tensorflow.lookup."):
        return TENSOR
    if kind.startswith("tensorflow.data."):
        return value
    if kind.startswith("tensorflow.random."):
        return TENSOR
    if ".metrics." in kind and name == "result":
        return TENSOR
    if kind.startswith("tensorflow.distribute.") and name in ("all_reduce", "reduce", "all_gather"):
        return STRUCTURE
    if name in ("get_scaled_loss", "result", "add_weight", "scale_loss"):
        return TENSOR
    if name == "get_unscaled_gradients":
        return container([STRUCTURE])
    if any(value.is_symbolic for value in arguments) and name not in ("apply_gradients", "watch"):
        return STRUCTURE
    return UNKNOWN
