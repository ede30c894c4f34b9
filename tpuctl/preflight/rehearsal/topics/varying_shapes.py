"""Finds the dimensions whose variation causes recompilation, and padding that would reduce it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpuctl.preflight.rehearsal.observations import Shape

Shapes = tuple[Shape, ...]
MULTIPLES = (8, 16, 32, 64, 128, 256, 512, 1024)
MAX_COMPILATIONS = 2  # that padding should leave; each takes as long as some fifty steps
MAX_WASTE = 0.5  # share of elements that padding may add


@dataclass(frozen=True)
class Variation:
    """A dimension of an argument, and its values in the order of compilation."""

    argument: int
    dimension: int
    values: tuple[int, ...]

    @property
    def is_batch(self) -> bool:
        return self.dimension == 0

    @property
    def is_remainder(self) -> bool:
        """Whether it looks like full batches followed by a smaller last one."""
        distinct = list(dict.fromkeys(self.values))
        return self.is_batch and len(distinct) == 2 and distinct[0] > distinct[1]


@dataclass(frozen=True)
class Padding:
    """Lengths rounded up to a multiple, and the number of compilations with and without it."""

    multiple: int
    compilations: int
    original_compilations: int
    waste: float  # added elements as a share of the original ones


def varying_dimensions(compilations: Sequence[Shapes]) -> list[Variation]:
    """The dimensions that differ between compilations with the same number of arguments."""
    if len({_signature(shapes) for shapes in compilations}) != 1:
        return []
    variations = []
    for argument, shape in enumerate(compilations[0]):
        for dimension in range(len(shape.dims or ())):
            values = tuple(_size(shapes[argument], dimension) for shapes in compilations)
            if len(set(values)) > 1:
                variations.append(Variation(argument, dimension, values))
    return variations


def padding_for(compilations: Sequence[Shapes], variations: Sequence[Variation]) -> Padding | None:
    """The smallest multiple that leaves few distinct lengths.

    None if only the batch varies, or if padding does not reduce the number of compilations.
    """
    lengths = [dimension for dimension in variations if not dimension.is_batch]
    if not lengths:
        return None
    rows = list(zip(*(length.values for length in lengths), strict=True))
    before = len(set(rows))
    best = None
    for multiple in MULTIPLES:
        padded = [tuple(_round_up(value, multiple) for value in row) for row in rows]
        remaining = len(set(padded))
        size, padded_size = sum(map(sum, rows)), sum(map(sum, padded))
        waste = padded_size / size - 1 if size else 0.0
        if remaining < before and (best is None or waste <= MAX_WASTE):
            best = Padding(multiple, remaining, before, waste)
        if remaining <= MAX_COMPILATIONS:
            break
    return best


def _signature(shapes: Shapes) -> tuple[tuple[str, int], ...]:
    """The types and ranks of the arguments, which must be equal to compare sizes."""
    return tuple((shape.dtype, -1 if shape.dims is None else len(shape.dims)) for shape in shapes)


def _size(shape: Shape, dimension: int) -> int:
    size = shape.dims[dimension] if shape.dims is not None else None
    return -1 if size is None else size


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
