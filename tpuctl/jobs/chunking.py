"""Cuts bytes into chunks at places that depend on what stands there, not on where it stands.

So the chunks around a change are other ones, and those before and after it are the same, though
something was inserted. Lines are what is looked at, since Python finds those at the speed of C:
a chunk ends after a line whose checksum says so. Bytes without lines are cut at spaces or commas.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO
from zlib import crc32

__all__ = ["MAX_CHUNK_BYTES", "MIN_CHUNK_BYTES", "cut"]

MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = (
    16 << 10,
    256 << 10,
)  # bytes of a chunk; the last one of all may be smaller
USUAL = 48 << 10  # bytes after the smallest size in which one place to cut is expected
CHANCE = (1 << 32) // USUAL  # of a byte, as the part of all checksums that say so
SEPARATORS = (b"\n", b" ", b",")  # one is tried after the other
AT_ONCE = 1000  # lines looked at; the first ones usually do
READ = 1 << 20


def cut(source: IO[bytes]) -> Iterator[bytes]:
    """The chunks of what can be read, in order; none of nothing."""
    buffer, start = b"", 0
    while True:
        if len(buffer) - start < MAX_CHUNK_BYTES:
            buffer, start = buffer[start:] + source.read(READ), 0
            if not buffer:
                return
        window = buffer[start : start + MAX_CHUNK_BYTES]
        end = _end(window)
        yield window[:end]
        start += end


def _end(window: bytes) -> int:
    """Where the chunk that begins the window ends."""
    if len(window) <= MIN_CHUNK_BYTES:
        return len(window)
    for separator in SEPARATORS:
        # Only what begins after the smallest size is looked at, and as a whole.
        end = window.find(separator, MIN_CHUNK_BYTES - 1) + 1 or len(window)
        while end < len(window):
            lines = window[end:].split(separator, AT_ONCE)
            lines.pop()  # not ended, or not looked at yet
            for line in lines:
                end += len(line) + 1
                if crc32(line) < len(line) * CHANCE:  # long lines are rare, and likely places
                    return end
            if not lines:
                break
    return len(window)
