"""Unpacks a bundle's files from packs, and verifies all of them by their SHA-256.

Like `fetch.py`, which uses it, this file is sent to workers as it is: standard library only, Python
3.8 and later. `pack_format.py` describes packs, `bundle.py` manifests.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, NamedTuple

__all__ = ["CorruptPack", "Failure", "is_pack_name", "unpack"]

RECORD = struct.Struct(">32sI")
BUFFER_BYTES = 1 << 20  # maximum of a pack held in memory, compressed or not
MAX_PARALLEL_PACKS = 4  # packs unpacked in parallel


class Destination(NamedTuple):
    """Where a chunk is written."""

    path: str
    offset: int
    mode: int


class Failure(Exception):
    """The bundle is unavailable or invalid."""


class CorruptPack(Exception):
    """The pack with this name is corrupt."""


def is_pack_name(name: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}\.[1-9][0-9]{0,6}", name) is not None


def unpack(folder: str, root: dict[str, Any], digest: str, target: str) -> None:
    """Unpack a bundle into the folder `target`, atomically.

    `root` lists the chunks of the manifest, and the packs, which are in `folder`. Raises Failure
    for files or links outside the target, too.
    """
    partial = target + ".part"
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    packs = [os.path.join(folder, name) for name in root["packs"]]
    try:
        manifest = read_manifest(packs, root["manifest"], digest)
        links, destinations = create_files(manifest, partial)
        write_chunks(packs, destinations)
        make_links(links, partial)
        os.rename(partial, target)
    except OSError as error:
        raise Failure(f"cannot unpack the bundle: {error}") from error


def read_manifest(packs: list[str], chunks: list[str], digest: str) -> bytes:
    contents: dict[bytes, bytes] = {}
    hashes = [bytes.fromhex(text) for text in chunks]
    for pack in packs:
        missing = set(hashes) - contents.keys()
        if missing:
            contents.update(read_chunks(pack, missing))
    manifest = b"".join(contents.get(sha, b"") for sha in hashes)
    if hashlib.sha256(manifest).hexdigest() != digest:
        raise Failure("the bundle's packs do not contain its manifest")
    return manifest


def create_files(
    manifest: bytes, base: str
) -> tuple[dict[str, str], dict[bytes, list[Destination]]]:
    """Create folders and empty files; returns the links, and where chunks must be written."""
    links: dict[str, str] = {}
    destinations: dict[bytes, list[Destination]] = {}
    seen: set[str] = set()

    def path_of(name: str) -> str:
        if name in seen or name != os.path.normpath(name) or is_outside(name) or name == os.curdir:
            raise Failure(f"{name!r} is not a valid name in a bundle")
        seen.add(name)
        return os.path.join(base, name)

    path, offset, mode = "", 0, 0
    for line in manifest.splitlines():
        value = json.loads(line)
        if isinstance(value, list):
            destination = Destination(path, offset, mode)
            destinations.setdefault(bytes.fromhex(value[0]), []).append(destination)
            offset += value[1]
        elif "folder" in value:
            os.mkdir(path_of(value["folder"]))
        elif "link" in value:
            links[path_of(value["link"])] = value["target"]
        else:
            path, offset, mode = path_of(value["file"]), 0, 0o755 if value["executable"] else 0o644
            write(path, 0, b"", mode)
    return links, destinations


def is_outside(name: str) -> bool:
    return os.path.isabs(name) or name.split(os.sep, 1)[0] == os.pardir


def write_chunks(packs: list[str], destinations: dict[bytes, list[Destination]]) -> None:
    """Write all chunks to their files."""

    def extract(pack: str) -> None:
        for sha, chunk in read_chunks(pack, destinations.keys()):
            for path, offset, mode in destinations.pop(sha, ()):  # two packs may contain it
                write(path, offset, chunk, mode)

    with ThreadPoolExecutor(MAX_PARALLEL_PACKS) as pool:
        list(pool.map(extract, packs))
    if destinations:
        raise Failure(f"the bundle's packs lack {len(destinations)} of its chunks")


def read_chunks(pack: str, needed: Any) -> Iterator[tuple[bytes, bytes]]:
    """The needed chunks of a pack with their SHA-256, each verified."""
    name = os.path.basename(pack)
    with open(pack, "rb") as source:
        index = source.read(int(name.partition(".")[2]) * RECORD.size)
        if hashlib.sha256(index).hexdigest() != name.partition(".")[0]:
            raise CorruptPack(name)
        buffer, pieces = b"", decompress(source)
        remaining = sum(sha in needed for sha, _ in RECORD.iter_unpack(index))
        start = 0
        for sha, size in RECORD.iter_unpack(index):
            if not remaining:
                return
            while len(buffer) - start < size:
                try:
                    buffer, start = buffer[start:] + next(pieces), 0
                except (StopIteration, zlib.error):
                    raise CorruptPack(name) from None
            if sha in needed:
                chunk = buffer[start : start + size]
                if hashlib.sha256(chunk).digest() != sha:
                    raise CorruptPack(name)
                remaining -= 1
                yield sha, chunk
            start += size


def decompress(source: IO[bytes]) -> Iterator[bytes]:
    """Decompress consecutive zlib streams."""
    engine, data = zlib.decompressobj(), b""
    while True:
        data = data or source.read(BUFFER_BYTES)
        if not data:
            return
        yield engine.decompress(data, BUFFER_BYTES)
        data = engine.unconsumed_tail
        if engine.eof:
            engine, data = zlib.decompressobj(), engine.unused_data


def write(path: str, offset: int, data: bytes, mode: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        while data:
            done = os.pwrite(file, data, offset)
            data, offset = data[done:], offset + done
        os.fchmod(file, mode)
    finally:
        os.close(file)


def make_links(links: dict[str, str], base: str) -> None:
    """Create the links last, so that nothing is written through one, and check their targets."""
    for path, target in links.items():
        os.symlink(target, path)
    inside = os.path.realpath(base)
    for path, target in links.items():
        end = os.path.realpath(path)
        if os.path.isabs(target) or os.path.commonpath([inside, end]) != inside:
            raise Failure(f"{os.path.relpath(path, base)} points outside the bundle")
