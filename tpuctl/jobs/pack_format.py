"""Packs: objects of some megabytes that contain many chunks, to save requests.

A pack is its index followed by its compressed chunks. The index has 36 bytes per chunk: its SHA-256
and its size. The pack's name is the SHA-256 of its index and its number of chunks, so that the
index can be read separately, and verified. `unpack.py` reads packs.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tpuctl.errors import Conflict
from tpuctl.jobs.bundle import Source

__all__ = [
    "MAX_PACK_BYTES",
    "Plan",
    "encode_index",
    "group_chunks",
    "index_size",
    "is_pack_name",
    "pack_name",
    "plan",
    "read_index",
    "write_pack",
]

MAX_PACK_BYTES = 16 << 20  # maximum of uncompressed chunks in one pack
RECORD = struct.Struct(">32sI")
COMPRESSION_LEVEL = 3  # twice as fast as the default compression level, and a few percent larger
SAMPLE_BYTES = 4096  # bytes of a chunk that are compressed to test whether it is compressible
MAX_OVERHEAD = 4  # a pack is used if at least one in MAX_OVERHEAD of its bytes is needed
SMALL_PACK_BYTES = MAX_PACK_BYTES // 16  # needed bytes of a small pack
MAX_SMALL_PACKS = 16  # beyond that, small packs are merged into new ones

Index = Mapping[bytes, int]  # the size of each chunk, in order


def encode_index(chunks: Mapping[bytes, int]) -> bytes:
    """The index of a pack with these chunks."""
    return b"".join(RECORD.pack(sha, size) for sha, size in chunks.items())


def pack_name(index: bytes) -> str:
    """The name of the pack that begins with this index."""
    return f"{hashlib.sha256(index).hexdigest()}.{len(index) // RECORD.size}"


def is_pack_name(name: str) -> bool:
    """Whether this is a valid name of a pack."""
    return re.fullmatch(r"[0-9a-f]{64}\.[1-9][0-9]{0,6}", name) is not None


def index_size(name: str) -> int:
    """The size of a pack's index."""
    return int(name.partition(".")[2]) * RECORD.size


def read_index(name: str, index: bytes) -> Index | None:
    """Parse the index of the pack with this name; None if it is corrupt."""
    if pack_name(index) != name or len(index) % RECORD.size:
        return None
    return dict(RECORD.iter_unpack(index))


class Plan(NamedTuple):
    """How the chunks of a bundle are transferred to the machine that unpacks it."""

    use: tuple[str, ...]  # existing packs
    send: dict[bytes, int]  # chunks that these do not contain


def plan(needed: Mapping[bytes, int], existing: Mapping[str, Index]) -> Plan:
    """Choose among existing packs, the most useful ones first.

    A pack of which little is needed is not used, since every worker would download the rest of it
    too; nor are many small packs, whose number would grow with every run.
    """
    remaining = dict(needed)
    use: dict[str, dict[bytes, int]] = {}

    def useful(name: str) -> dict[bytes, int]:
        return {sha: size for sha, size in existing[name].items() if sha in remaining}

    by_use = {name: sum(useful(name).values()) for name in existing}
    for name in sorted(existing, key=lambda name: (-by_use[name], name)):
        useful_chunks = useful(name)
        size = sum(existing[name].values())
        if useful_chunks and sum(useful_chunks.values()) * MAX_OVERHEAD >= size:
            use[name] = useful_chunks
            for sha in useful_chunks:
                del remaining[sha]
    small = [name for name, chunks in use.items() if sum(chunks.values()) < SMALL_PACK_BYTES]
    if len(small) > MAX_SMALL_PACKS:
        for name in small:
            remaining.update(use.pop(name))
    return Plan(tuple(use), {sha: size for sha, size in needed.items() if sha in remaining})


def group_chunks(
    chunks: Mapping[bytes, int], max_bytes: int = MAX_PACK_BYTES
) -> Iterator[dict[bytes, int]]:
    """Group chunks into packs, in order."""
    group: dict[bytes, int] = {}
    size = 0
    for sha, length in chunks.items():
        if group and size + length > max_bytes:
            yield group
            group, size = {}, 0
        group[sha] = length
        size += length
    if group:
        yield group


def write_pack(path: Path, chunks: Mapping[bytes, int], sources: Mapping[bytes, Source]) -> None:
    """Write a pack of these chunks. Raises Conflict if a file has changed in the meantime."""
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as target:
        target.write(encode_index(chunks))
        stream, level = zlib.compressobj(COMPRESSION_LEVEL), COMPRESSION_LEVEL
        for chunk in _read_chunks(list(chunks), sources):
            # Incompressible data is stored as it is: compressing it would take most of the time.
            chunk_level = COMPRESSION_LEVEL if _is_compressible(chunk) else 0
            if chunk_level != level:
                target.write(stream.flush())
                stream, level = zlib.compressobj(chunk_level), chunk_level
            target.write(stream.compress(chunk))
        target.write(stream.flush())
    partial.replace(path)


def _read_chunks(chunks: Sequence[bytes], sources: Mapping[bytes, Source]) -> Iterator[bytes]:
    opened, file = None, None
    try:
        for sha in chunks:
            path, offset, size = sources[sha]
            if path != opened or file is None:
                if file is not None:
                    file.close()
                opened, file = path, path.open("rb")
            file.seek(offset)
            chunk = file.read(size)
            if hashlib.sha256(chunk).digest() != sha:
                raise Conflict(
                    "File changed while it was being bundled",
                    str(path),
                    hint="Run the command again.",
                )
            yield chunk
    finally:
        if file is not None:
            file.close()


def _is_compressible(chunk: bytes) -> bool:
    sample = chunk[:SAMPLE_BYTES]
    return len(chunk) < SAMPLE_BYTES or len(zlib.compress(sample, 1)) < len(sample) * 0.95
