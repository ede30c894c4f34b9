"""A text of any size as pieces of about a megabyte that end where a document ends.

The files, one after the other, are one range of bytes. Piece number k holds the documents that
begin in its k-th megabyte, so any piece can be found without reading those before it, and the
pieces are the same whoever reads them.
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
        """Return the documents of one piece; an empty line stands between files."""
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
        """Return where the first document begins behind byte `at`.

        When a whole piece has no empty line, the document is cut at the end of a line, and a
        line as long as that anywhere, so that a piece is never more than two megabytes.
        """
        if at == 0 or at >= size:
            return min(at, size)
        seen = b""
        while len(seen) < self.piece_bytes:
            block = read(path, at + len(seen), min(BLOCK_BYTES, self.piece_bytes - len(seen)))
            searched = max(0, len(seen) - 2)
            seen += block
            if border := BORDER.search(seen, searched):
                return at + border.end()
            if not block:
                return size
        return at + seen.find(b"\n") + 1


def shards_of(piece: int, pieces: int, shards: int) -> range:
    """Return the shards that a piece fills: one of many pieces' or, of a small text, several.

    The shards follow the order of the pieces, so each is finished before the next begins.
    """
    first = piece * shards // pieces
    return range(first, max(first + 1, (piece + 1) * shards // pieces))
