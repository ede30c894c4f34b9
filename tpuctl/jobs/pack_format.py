"""Packs: objects of some megabytes that hold chunks, so that many files are not many requests.

A pack is its index and, after it, its chunks, compressed. The index is 36 bytes for each chunk: its
SHA-256 and its size. The pack's name is the SHA-256 of its index and how many chunks it has, so
that whoever knows the name can read the index alone, and trust it. `unpack.py` reads packs.
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
    "PACK_BYTES",
    "Plan",
    "groups",
    "index_bytes",
    "index_of",
    "is_pack",
    "pack_name",
    "plan",
    "read_index",
    "write_pack",
]

PACK_BYTES = 16 << 20  # of chunks in one pack
RECORD = struct.Struct(">32sI")
LEVEL = 3  # of compression: twice as quick as the usual one, and a few per cent larger
SAMPLE = 4096  # bytes of a chunk that tell whether compressing it is worth the time
WASTE = 4  # a pack is used where at least one byte in so many is wanted
SMALL = PACK_BYTES // 16
MAX_SMALL_PACKS = 16  # packs with less than that wanted of them; more are joined into new ones

Index = Mapping[bytes, int]  # the size of each chunk, in order


def index_of(chunks: Mapping[bytes, int]) -> bytes:
    """The index of a pack with these chunks."""
    return b"".join(RECORD.pack(sha, size) for sha, size in chunks.items())


def pack_name(index: bytes) -> str:
    """The name of the pack that begins with this index."""
    return f"{hashlib.sha256(index).hexdigest()}.{len(index) // RECORD.size}"


def is_pack(name: str) -> bool:
    """Whether this can be the name of a pack."""
    return re.fullmatch(r"[0-9a-f]{64}\.[1-9][0-9]{0,6}", name) is not None


def index_bytes(name: str) -> int:
    """How long the index of a pack is."""
    return int(name.partition(".")[2]) * RECORD.size


def read_index(name: str, index: bytes) -> Index | None:
    """What a pack holds; None where this is not its index."""
    if pack_name(index) != name or len(index) % RECORD.size:
        return None
    return dict(RECORD.iter_unpack(index))


class Plan(NamedTuple):
    """How the chunks of a bundle are transferred to the machine that unpacks it."""

    use: tuple[str, ...]  # packs that are there
    send: dict[bytes, int]  # chunks that are not, or not worth the packs that they are in


def plan(needed: Mapping[bytes, int], there: Mapping[str, Index]) -> Plan:
    """Choose among the packs that are there, the most useful ones first.

    A pack of which little is wanted is passed over, since every worker would fetch the rest of it
    too, and many small ones as well: they would become more with every run.
    """
    left = dict(needed)
    use: dict[str, dict[bytes, int]] = {}

    def useful(name: str) -> dict[bytes, int]:
        return {sha: size for sha, size in there[name].items() if sha in left}

    by_use = {name: sum(useful(name).values()) for name in there}
    for name in sorted(there, key=lambda name: (-by_use[name], name)):
        useful_chunks = useful(name)
        if useful_chunks and sum(useful_chunks.values()) * WASTE >= sum(there[name].values()):
            use[name] = useful_chunks
            for sha in useful_chunks:
                del left[sha]
    small = [name for name, useful_chunks in use.items() if sum(useful_chunks.values()) < SMALL]
    if len(small) > MAX_SMALL_PACKS:
        for name in small:
            left.update(use.pop(name))
    return Plan(tuple(use), {sha: size for sha, size in needed.items() if sha in left})


def groups(chunks: Mapping[bytes, int], most: int = PACK_BYTES) -> Iterator[dict[bytes, int]]:
    """Chunks as packs are to hold them, in order."""
    group: dict[bytes, int] = {}
    size = 0
    for sha, length in chunks.items():
        if group and size + length > most:
            yield group
            group, size = {}, 0
        group[sha] = length
        size += length
    if group:
        yield group


def write_pack(path: Path, chunks: Mapping[bytes, int], sources: Mapping[bytes, Source]) -> None:
    """Write a pack of these chunks. Raises Conflict when a file has changed meanwhile."""
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as target:
        target.write(index_of(chunks))
        stream, level = zlib.compressobj(LEVEL), LEVEL
        for chunk in _contents(list(chunks), sources):
            # What is compressed already is stored as it is: trying would take most of the time.
            chunk_level = LEVEL if _is_worth_it(chunk) else 0
            if chunk_level != level:
                target.write(stream.flush())
                stream, level = zlib.compressobj(chunk_level), chunk_level
            target.write(stream.compress(chunk))
        target.write(stream.flush())
    partial.replace(path)


def _contents(chunks: Sequence[bytes], sources: Mapping[bytes, Source]) -> Iterator[bytes]:
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


def _is_worth_it(chunk: bytes) -> bool:
    sample = chunk[:SAMPLE]
    return len(chunk) < SAMPLE or len(zlib.compress(sample, 1)) < len(sample) * 0.95
