"""Compares the copies of a training step's results that devices hold and that should be equal."""

from __future__ import annotations

from typing import Any

ROUNDING = 8  # copies may differ by so many rounding errors of the largest value


class DeviceCopies:
    """The copies of one function's state: arrays that are declared to be replicated, and, with
    `jax.pmap`, those whose copies are equal in the first call's arguments."""

    def __init__(self, jax: Any, numpy: Any, arguments: Any, is_pmap: bool) -> None:
        self.jax, self.numpy, self.is_pmap = jax, numpy, is_pmap
        self.replicated = {
            _kind(leaf)
            for leaf in (jax.tree_util.tree_leaves(arguments) if is_pmap else ())
            if _has_copies(leaf) and self._are_equal(list(numpy.asarray(leaf)))
        }

    def have_diverged(self, result: Any) -> bool:
        """Whether most of the state differs between devices."""
        total = differing = 0
        for leaf in self.jax.tree_util.tree_leaves(result):
            copies = self._copies(leaf)
            if len(copies) > 1:
                total += leaf.nbytes
                differing += 0 if self._are_equal(copies) else leaf.nbytes
        return differing * 2 > total

    def _copies(self, leaf: Any) -> list[Any]:
        """The copies that should be equal; none of integers, such as counters and random keys."""
        if not isinstance(leaf, self.jax.Array) or "float" not in str(leaf.dtype) or not leaf.ndim:
            return []
        if self.is_pmap:
            is_replicated = leaf.is_fully_addressable and _kind(leaf) in self.replicated
            return list(self.numpy.asarray(leaf)) if is_replicated else []
        if not leaf.is_fully_replicated:
            return []
        return [self.numpy.asarray(shard.data) for shard in leaf.addressable_shards]

    def _are_equal(self, copies: list[Any]) -> bool:
        numpy = self.numpy
        first, *others = (numpy.asarray(copy, numpy.float64) for copy in copies)
        if not numpy.isfinite(first).all():
            return True  # a finding of its own
        rounding = ROUNDING * float(self.jax.numpy.finfo(copies[0].dtype).eps)
        limit = rounding * float(numpy.abs(first).max(initial=0))
        return all(bool((numpy.abs(first - other) <= limit).all()) for other in others)


def _has_copies(leaf: Any) -> bool:
    is_float = "float" in str(getattr(leaf, "dtype", ""))
    return is_float and len(leaf.shape) > 1 and leaf.shape[0] > 1


def _kind(leaf: Any) -> tuple[str, tuple[int, ...]]:
    return str(leaf.dtype), tuple(leaf.shape)
