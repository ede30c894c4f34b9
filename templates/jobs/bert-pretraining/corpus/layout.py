"""The record format of a sequence: a row of numbers with fixed fields.

All numbers have the same type, so a batch of records is decoded by one operation and split into
fields, several times as fast as one tf.train.Example per sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy

__all__ = ["BITS", "Layout", "bits"]

BITS = 16  # used for marks in each number, whatever its type


@dataclass(frozen=True)
class Layout:
    """The fields of a record in order, and the type of its numbers.

    | field | numbers | |
    |---|---|---|
    | total | 1 | tokens, including special ones; the rest is padding |
    | first | 1 | tokens of the first segment, including [CLS] and its [SEP] |
    | label | 1 | of the pair |
    | input_ids | L | |
    | count | 1 | static: predictions |
    | positions, ids | P each | static |
    | words | L / 16 | dynamic: one bit per token, lowest first: whether a word begins here |
    """

    sequence_length: int
    predictions: int
    masking: str
    vocabulary_size: int

    @property
    def number_type(self) -> str:
        """The numbers' type, little endian."""
        return "uint16" if self.vocabulary_size <= 1 << 16 else "int32"

    @property
    def number_bytes(self) -> int:
        """The size of a number."""
        return numpy.dtype(self.number_type).itemsize

    @property
    def fields(self) -> dict[str, int]:
        """The fields' names, each with its count of numbers."""
        common = {"total": 1, "first": 1, "label": 1, "input_ids": self.sequence_length}
        if self.masking == "static":
            return {**common, "count": 1, "positions": self.predictions, "ids": self.predictions}
        return {**common, "words": -(-self.sequence_length // BITS)}

    def rows(self, **fields: Any) -> Any:
        """Return the records as an array [N, numbers]; a field is [N] or [N, its numbers]."""
        columns = [numpy.reshape(fields[name], (-1, size)) for name, size in self.fields.items()]
        kind = numpy.dtype(self.number_type).newbyteorder("<")
        return numpy.concatenate(columns, axis=1).astype(kind)


def bits(marks: Any) -> Any:
    """Return marks, bool [N, L], as numbers of 16 bits, int32 [N, L / 16], the first lowest."""
    count, length = marks.shape
    padded = numpy.zeros((count, -(-length // BITS) * BITS), bool)
    padded[:, :length] = marks
    powers = 1 << numpy.arange(BITS, dtype=numpy.int32)
    return padded.reshape(count, -1, BITS).astype(numpy.int32) @ powers
