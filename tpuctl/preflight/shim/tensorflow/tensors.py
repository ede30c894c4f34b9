"""Derives the loss, the batch size and shapes from a step's arguments and results."""

from __future__ import annotations

from typing import Any


def loss_of(tensorflow: Any, strategy: Any, result: Any) -> Any:
    """The loss as a float32 scalar, the mean over replicas; None if the result has no scalar.

    It is a mapping's "loss", otherwise the first scalar.
    """
    leaves = [result["loss"]] if isinstance(result, dict) and "loss" in result else None
    for leaf in leaves or tensorflow.nest.flatten(result):
        parts = _parts(strategy, leaf)
        if parts and all(_is_number(part) for part in parts):
            values = [tensorflow.cast(part, tensorflow.float32) for part in parts]
            return tensorflow.add_n(values) / float(len(values))
    return None


def batch_of(tensorflow: Any, strategy: Any, arguments: Any) -> Any:
    """The global batch size of a step's arguments; None if unknown."""
    for leaf in tensorflow.nest.flatten(arguments):
        for first in _parts(strategy, leaf)[:1]:
            if getattr(first, "shape", None) is None or first.shape.rank in (None, 0):
                break
            if isinstance(first, tensorflow.Variable):
                break
            parts = _parts(strategy, leaf)
            sizes = [tensorflow.cast(tensorflow.shape(part)[0], tensorflow.int32) for part in parts]
            return tensorflow.add_n(sizes)
    return None


def number(value: Any) -> Any:
    """Convert an array or a tensor to a Python number; None stays None."""
    if value is None:
        return None
    value = value.numpy() if hasattr(value, "numpy") else value
    return value.item() if hasattr(value, "item") else value


def shape_of(tensor: Any) -> list[Any]:
    """The type and dimensions of a tensor or its spec; unknown dimensions are None."""
    shape = getattr(tensor, "shape", None)
    dims = None if shape is None or shape.rank is None else shape.as_list()
    return [getattr(getattr(tensor, "dtype", None), "name", "?"), dims]


def _parts(strategy: Any, leaf: Any) -> list[Any]:
    """A value's tensors on all replicas; empty if it is not a tensor."""
    if strategy is not None and type(leaf).__name__ in ("PerReplica", "DistributedValues"):
        return list(strategy.experimental_local_results(leaf))
    return [leaf] if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else []


def _is_number(part: Any) -> bool:
    shape = getattr(part, "shape", None)
    floats = getattr(getattr(part, "dtype", None), "is_floating", False)
    return bool(floats) and getattr(shape, "rank", None) == 0
