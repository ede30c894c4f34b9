"""Abstract results of JAX's functions in traced code, as far as the rules need them.

A function that is not listed has an unknown result, so that rules stay silent about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpuctl.preflight.analysis.values.abstract_values import (
    STATIC,
    TENSOR,
    UNKNOWN,
    Kind,
    Value,
    container,
)

BOOLEAN = Value(Kind.TENSOR, is_boolean=True)
MODULES = ("jax.numpy.", "jax.nn.", "jax.random.", "jax.lax.")
MODULES_OF_FLAX = ("flax.linen.", "flax.nnx.")
LAYERS = {
    *("Dense", "DenseGeneral", "Conv", "ConvTranspose", "Embed", "LayerNorm", "RMSNorm"),
    *("GroupNorm", "BatchNorm", "Dropout", "Linear", "LinearGeneral", "MultiHeadAttention"),
    *("MultiHeadDotProductAttention", "SelfAttention"),
}
ACTIVATIONS = {
    *("relu", "gelu", "silu", "swish", "elu", "leaky_relu", "sigmoid", "softmax", "log_softmax"),
    *("softplus", "tanh", "one_hot", "logsumexp"),
}
STATIC_FUNCTIONS = {
    "shape", "ndim", "size", "issubdtype", "result_type", "promote_types", "finfo", "iinfo",
    "dtype", "isscalar", "iscomplexobj", "isrealobj", "broadcast_shapes", "isdtype",
    "iterable", "can_cast", "get_printoptions", "axis_size", "key_impl",
}  # fmt: skip
BOOLEAN_FUNCTIONS = {
    "any", "all", "isnan", "isinf", "isfinite", "isclose", "allclose", "array_equal", "equal",
    "not_equal", "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_or",
    "logical_not", "logical_xor", "isin", "bernoulli", "signbit", "isneginf", "isposinf",
}  # fmt: skip
# Functions that return one array, whatever their arguments are.
ARRAY_FUNCTIONS = {
    *("sum", "mean", "max", "min", "prod", "std", "var", "median", "argmax", "argmin", "cumsum"),
    *("maximum", "minimum", "abs", "absolute", "exp", "log", "log1p", "sqrt", "square", "sin"),
    *("cos", "tanh", "sign", "clip", "floor", "ceil", "round", "power", "mod", "remainder", "add"),
    *("subtract", "multiply", "divide", "dot", "matmul", "einsum", "tensordot", "vdot", "outer"),
    *("zeros", "ones", "full", "empty", "arange", "linspace", "eye", "zeros_like", "ones_like"),
    *("full_like", "array", "asarray", "reshape", "transpose", "squeeze", "expand_dims", "stack"),
    *("concatenate", "broadcast_to", "tile", "repeat", "roll", "take", "take_along_axis", "sort"),
    *("argsort", "where", "flip", "pad", "ravel", "swapaxes", "moveaxis", "count_nonzero", "norm"),
    *("nanmax", "nanmin", "nansum", "nanmean", "cumprod", "diff", "trace", "tril", "triu"),
    *("float32", "float16", "bfloat16", "int32", "int8", "uint8", "uint32", "float64", "int64"),
    *("relu", "gelu", "silu", "sigmoid", "softmax", "log_softmax", "one_hot", "softplus"),
    *("logsumexp", "normal", "uniform", "randint", "categorical", "permutation", "choice"),
    *("PRNGKey", "key", "fold_in", "split", "truncated_normal", "gumbel", "exponential"),
    *("stop_gradient", "dynamic_slice", "dynamic_slice_in_dim", "dynamic_update_slice", "select"),
    *("axis_index", "rsqrt", "convert_element_type", "population_count", "iota"),
}
STATIC_ATTRIBUTES = {
    *("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "sharding", "aval", "weak_type"),
    *("committed", "device", "is_fully_addressable"),
}
SAME_ATTRIBUTES = {"T", "mT", "real", "imag", "at"}
ARRAY_METHODS = {
    *("sum", "mean", "max", "min", "prod", "std", "var", "argmax", "argmin", "cumsum", "dot"),
    *("astype", "round", "clip", "reshape", "ravel", "flatten", "transpose", "squeeze"),
}
KEEPS_BOOLEAN = {"reshape", "ravel", "flatten", "transpose", "squeeze"}
UPDATES = {"set", "add", "subtract", "multiply", "divide", "power", "min", "max", "apply"}


def array_function(name: str | None) -> str | None:
    """The name of a function on arrays, such as "unique" for "jax.numpy.unique"."""
    if name is None or not name.startswith("jax.numpy."):
        return None
    return name.removeprefix("jax.numpy.")


def array_result(name: str, arguments: Sequence[Value]) -> Value | None:
    """The result of a function of JAX or Flax in traced code; None for other libraries."""
    if name.startswith(MODULES_OF_FLAX):
        return TENSOR if name.rpartition(".")[2] in ACTIVATIONS else None
    if not name.startswith("jax."):
        return None
    if not name.startswith(MODULES):
        return UNKNOWN
    last = name.rpartition(".")[2]
    if last in STATIC_FUNCTIONS:
        return STATIC
    if last in BOOLEAN_FUNCTIONS:
        return BOOLEAN
    if last in ARRAY_FUNCTIONS and (last != "where" or len(arguments) == 3):
        return TENSOR
    return UNKNOWN


def layer_result(layer: Value, arguments: Sequence[Value]) -> Value | None:
    """The result of calling a layer of Flax on an array; None for anything else."""
    module, _, name = layer.name.rpartition(".")
    is_layer = f"{module}." in MODULES_OF_FLAX and name in LAYERS
    return TENSOR if is_layer and arguments and arguments[0].is_symbolic else None


def array_attribute(value: Value, name: str) -> Value:
    """The value of an attribute of an array, or of a structure of arrays."""
    if name in STATIC_ATTRIBUTES:
        return STATIC
    return value if name in SAME_ATTRIBUTES else UNKNOWN


def array_method(value: Value, name: str) -> Value:
    """The result of a method of an array, or of a structure of arrays."""
    if name in ("any", "all"):
        return BOOLEAN
    if name in ARRAY_METHODS and not (value.is_structure and name in UPDATES):
        return replace(TENSOR, is_boolean=value.is_boolean and name in KEEPS_BOOLEAN)
    if name in UPDATES:
        return value
    if name == "items":
        return container([Value(Kind.STATIC, items=(STATIC, value))])
    return value if name == "values" and value.is_structure else UNKNOWN
