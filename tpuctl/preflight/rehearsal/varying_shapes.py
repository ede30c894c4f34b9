"""What made a function compile again: the dimensions that varied, and what would keep them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpuctl.preflight.rehearsal.observations import Shape

__all__ = ["Padding", "Varying", "padding_for", "varying"]

Shapes = tuple[Shape, ...]
MULTIPLES = (8, 16, 32, 64, 128, 256, 512, 1024)
FEW = 2  # compilations that a padding may leave: each takes as long as some fifty steps
MOST_WASTE = 0.5  # of the elements, that padding to one length may add


@dataclass(frozen=True)
class Varying:
    """One dimension of one argument, and its values in the order seen."""

    argument: int
    dimension: int
    values: tuple[int, ...]

    @property
    def is_batch(self) -> bool:
        return self.dimension == 0

    @property
    def is_remainder(self) -> bool:
        """Whether it looks like full batches with a smaller one after them."""
        distinct = list(dict.fromkeys(self.values))
        return self.is_batch and len(distinct) == 2 and distinct[0] > distinct[1]


@dataclass(frozen=True)
class Padding:
    """Lengths rounded up to a multiple: how many compilations are left of how many."""

    multiple: int
    left: int
    before: int
    waste: float  # how much longer the seen lengths become, as a part of them


def varying(compilations: Sequence[Shapes]) -> list[Varying]:
    """The dimensions that differ between compilations with the same number of arguments."""
    if len({_outline(shapes) for shapes in compilations}) != 1:
        return []
    variations = []
    for argument, shape in enumerate(compilations[0]):
        for dimension in range(len(shape.dims or ())):
            values = tuple(_size(shapes[argument], dimension) for shapes in compilations)
            if len(set(values)) > 1:
                variations.append(Varying(argument, dimension, values))
    return variations


def padding_for(compilations: Sequence[Shapes], dimensions: Sequence[Varying]) -> Padding | None:
    """The smallest multiple to pad lengths to after which few shapes are left.

    None where no dimension but the batch varies, or padding helps little.
    """
    lengths = [dimension for dimension in dimensions if not dimension.is_batch]
    if not lengths:
        return None
    rows = list(zip(*(length.values for length in lengths), strict=True))
    before = len(set(rows))
    best = None
    for multiple in MULTIPLES:
        padded = [tuple(_up(value, multiple) for value in row) for row in rows]
        left = len(set(padded))
        raw, grown = sum(map(sum, rows)), sum(map(sum, padded))
        waste = grown / raw - 1 if raw else 0.0
        if left < before and (best is None or waste <= MOST_WASTE):
            best = Padding(multiple, left, before, waste)
        if left <= FEW:
            break
    return best


def _outline(shapes: Shapes) -> tuple[tuple[str, int], ...]:
    """What must be equal for sizes to be compared: arguments, their types, their ranks."""
    return tuple((shape.dtype, -1 if shape.dims is None else len(shape.dims)) for shape in shapes)


def _size(shape: Shape, dimension: int) -> int:
    size = shape.dims[dimension] if shape.dims is not None else None
    return -1 if size is None else size


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
