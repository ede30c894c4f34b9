"""Describes the arguments and results of JAX's compiled functions."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any


class Leaf:
    """An argument, or part of a nested one."""

    def __init__(self, jax: Any, name: str, value: Any) -> None:
        self.name = name
        self.is_array = hasattr(value, "shape") and hasattr(value, "dtype")
        self.dtype, self.placement = type(value).__name__, ""
        self.dims: tuple[int, ...] = ()
        if not self.is_array:
            self.text = repr(value)[:80]
            return
        self.dtype = str(value.dtype)
        self.dims = tuple(map(int, value.shape))
        self.text = f"{self.dtype}[{','.join(map(str, self.dims))}]"
        if getattr(value, "weak_type", False):
            self.text += " of a Python number"
        self.placement = _placement(value) if isinstance(value, jax.Array) else "the host"

    @property
    def key(self) -> Any:
        """What a result has in common with the argument that it replaces."""
        return self.dtype, self.dims

    @property
    def is_batched(self) -> bool:
        """Whether its first dimension may be the batch: it is not a random key."""
        is_key = self.dtype.startswith("key") or self.key == ("uint32", (2,))
        return bool(self.dims) and not is_key


class CallSignature:
    """What a call's compilation depends on."""

    def __init__(self, jax: Any, function: Any, arguments: Any, keywords: Any) -> None:
        names = parameter_names(function)
        names += [f"argument {number}" for number in range(len(names) + 1, len(arguments) + 1)]
        self.arguments: list[list[Leaf]] = [
            _leaves(jax, name, argument) for name, argument in zip(names, arguments, strict=False)
        ]
        self.arguments += [_leaves(jax, name, value) for name, value in sorted(keywords.items())]
        self.inputs = [leaf for leaves in self.arguments for leaf in leaves]

    def find_state(self, jax: Any, result: Any) -> None:
        """Restrict `inputs` to arguments that the function does not return with new values."""
        returned = Counter(
            (str(leaf.dtype), tuple(leaf.shape))
            for leaf in jax.tree_util.tree_leaves(result)
            if hasattr(leaf, "dtype")
        )
        inputs = []
        for leaves in self.arguments:
            arrays = Counter(leaf.key for leaf in leaves if leaf.is_array)
            if not arrays or arrays - returned:
                inputs += leaves
            else:
                returned -= arrays
        self.inputs = [leaf for leaf in inputs if leaf.is_array]

    def changes(self, other: CallSignature) -> list[str]:
        """The arguments that differ in another call, as texts for people."""
        before = {leaf.name: leaf for leaves in self.arguments for leaf in leaves}
        after = {leaf.name: leaf for leaves in other.arguments for leaf in leaves}
        if before.keys() != after.keys():
            return ["the structure of the arguments"]
        arrays: list[str] = []
        others: list[str] = []
        for name, leaf in before.items():
            now = after[name]
            if leaf.text != now.text:
                texts = arrays if leaf.is_array or now.is_array else others
                texts.append(f"{name}: {leaf.text}, then {now.text}")
            elif leaf.placement != now.placement:
                arrays.append(f"{name}: on {leaf.placement}, then on {now.placement}")
        return arrays or others


def is_key(leaf: Any) -> bool:
    """Whether an array is a random key, typed or raw."""
    dtype, shape = str(getattr(leaf, "dtype", "")), getattr(leaf, "shape", None)
    return (dtype.startswith("key") and shape == ()) or (dtype == "uint32" and shape == (2,))


def batch_size(jax: Any, signature: CallSignature | None, result: Any) -> int | None:
    """The global batch: the first dimension of the first argument that is not the state."""
    if signature is None:
        return None
    signature.find_state(jax, result)
    return next((leaf.dims[0] for leaf in signature.inputs if leaf.is_batched), None)


def loss_of(jax: Any, result: Any) -> float | None:
    """A result's scalar: one whose name contains "loss", else the least nested; None if none."""
    candidates: list[tuple[bool, int, int, Any]] = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(result)[0]:
        dtype = getattr(leaf, "dtype", None)
        if dtype is None or getattr(leaf, "shape", None) != () or "float" not in str(dtype):
            continue
        is_other = not any("loss" in str(part).lower() for part in path)
        candidates.append((is_other, len(path), len(candidates), leaf))
    return float(min(candidates)[3]) if candidates else None


def device_count(jax: Any, result: Any) -> int | None:
    """The number of devices that the results are on."""
    counts = [
        len(leaf.sharding.device_set)
        for leaf in jax.tree_util.tree_leaves(result)
        if isinstance(leaf, jax.Array)
    ]
    return max(counts, default=None)


def parameter_names(function: Any) -> list[str]:
    """The names of a function's positional parameters, as far as they are known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


def _leaves(jax: Any, name: str, value: Any) -> list[Leaf]:
    paths = jax.tree_util.tree_flatten_with_path(value)[0]
    return [Leaf(jax, name + jax.tree_util.keystr(path), leaf) for path, leaf in paths]


def _placement(array: Any) -> str:
    """Where an array is, as far as it decides which program is compiled."""
    if not getattr(array, "committed", getattr(array, "_committed", True)):
        return "any device"
    devices = array.sharding.device_set
    if len(devices) == 1:
        return f"device {next(iter(devices)).id}"
    spec = getattr(array.sharding, "spec", None)
    return f"{len(devices)} devices" + (f" as {spec}" if spec is not None else "")
