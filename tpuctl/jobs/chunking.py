"""Content-defined chunking: boundaries depend on the content, not on its offset.

So an insertion changes only the chunks around it. Instead of a rolling hash, which is slow in
Python, lines are hashed: a chunk ends after a line whose CRC-32 is below a threshold. Data without
lines is split at spaces or commas.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO
from zlib import crc32

__all__ = ["MAX_CHUNK_BYTES", "MIN_CHUNK_BYTES", "split_chunks"]

MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 16 << 10, 256 << 10  # the last chunk may be smaller
MEAN_EXTRA_BYTES = 48 << 10  # average distance from the minimum size to the next boundary
THRESHOLD_PER_BYTE = (1 << 32) // MEAN_EXTRA_BYTES  # CRC-32 threshold for each byte of a line
SEPARATORS = (b"\n", b" ", b",")  # tried in this order
BATCH_LINES = 1000  # lines split at a time; the first few usually contain a boundary
READ_BYTES = 1 << 20


def split_chunks(source: IO[bytes]) -> Iterator[bytes]:
    """The chunks of a stream, in order; none if it is empty."""
    buffer, start = b"", 0
    while True:
        if len(buffer) - start < MAX_CHUNK_BYTES:
            buffer, start = buffer[start:] + source.read(READ_BYTES), 0
            if not buffer:
                return
        window = buffer[start : start + MAX_CHUNK_BYTES]
        end = _chunk_size(window)
        yield window[:end]
        start += end


def _chunk_size(window: bytes) -> int:
    """The size of the chunk at the beginning of the window."""
    if len(window) <= MIN_CHUNK_BYTES:
        return len(window)
    for separator in SEPARATORS:
        # Start at the first whole line after the minimum size.
        end = window.find(separator, MIN_CHUNK_BYTES - 1) + 1 or len(window)
        while end < len(window):
            lines = window[end:].split(separator, BATCH_LINES)
            lines.pop()  # incomplete, or left for the next batch
            for line in lines:
                end += len(line) + 1
                if crc32(line) < len(line) * THRESHOLD_PER_BYTE:  # as likely per byte in long lines
                    return end
            if not lines:
                break
    return len(window)
