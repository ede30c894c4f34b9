"""Splits a text of any size into pieces of about a megabyte, at document boundaries.

The files are treated as one range of bytes. Piece k holds the documents that begin in the k-th
megabyte, so any piece can be read without those before it, and the pieces are the same for every
reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["PIECE_BYTES", "Text", "shards_of"]

PIECE_BYTES = 1 << 20
BLOCK_BYTES = 1 << 16
BORDER = re.compile(rb"\n\r?\n")

# read(path, start, size): the bytes of a file from start, fewer than size at its end
Read = Callable[[str, int, int], bytes]


@dataclass(frozen=True)
class Text:
    """The text's files in order, each with its size in bytes."""

    files: tuple[tuple[str, int], ...]
    piece_bytes: int = PIECE_BYTES

    @property
    def size(self) -> int:
        """All bytes."""
        return sum(size for _, size in self.files)

    @property
    def pieces(self) -> int:
        """The number of pieces, at least one."""
        return max(1, -(-self.size // self.piece_bytes))

    def piece(self, number: int, read: Read) -> bytes:
        """Return the documents of one piece, with an empty line between files."""
        parts = []
        for path, start, stop in self.ranges(number):
            size = dict(self.files)[path]
            begin = self.document_start(path, size, start, read)
            end = self.document_start(path, size, stop, read)
            if begin < end:
                parts.append(read(path, begin, end - begin))
        return b"\n\n".join(parts)

    def ranges(self, number: int) -> Iterator[tuple[str, int, int]]:
        """Yield path, first byte and last byte + 1 of what a piece covers of each file."""
        low, high = number * self.piece_bytes, (number + 1) * self.piece_bytes
        before = 0
        for path, size in self.files:
            start, stop = max(low - before, 0), min(high - before, size)
            if start < stop:
                yield path, start, stop
            before += size

    def document_start(self, path: str, size: int, at: int, read: Read) -> int:
        """Return the offset of the first document that begins after byte `at`.

        If a whole piece has no empty line, the document is cut at the end of a line, or anywhere
        if the line is that long, so a piece is never more than two megabytes.
        """
        if at == 0 or at >= size:
            return min(at, size)
        buffer = b""
        while len(buffer) < self.piece_bytes:
            block = read(path, at + len(buffer), min(BLOCK_BYTES, self.piece_bytes - len(buffer)))
            searched = max(0, len(buffer) - 2)
            buffer += block
            if border := BORDER.search(buffer, searched):
                return at + border.end()
            if not block:
                return size
        return at + buffer.find(b"\n") + 1


def shards_of(piece: int, pieces: int, shards: int) -> range:
    """Return the shards that a piece contributes to: usually one, in a small text several.

    The shards follow the order of the pieces, so each is complete before the next begins.
    """
    first = piece * shards // pieces
    return range(first, max(first + 1, (piece + 1) * shards // pieces))
