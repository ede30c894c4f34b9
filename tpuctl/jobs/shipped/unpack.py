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

__all__ = ["Damaged", "Failure", "is_pack", "unpack"]

RECORD = struct.Struct(">32sI")
PIECE = 1 << 20  # maximum of a pack held in memory, compressed or not
AT_ONCE = 4  # packs unpacked in parallel


class Place(NamedTuple):
    """Where a chunk is written."""

    path: str
    offset: int
    mode: int


class Failure(Exception):
    """The bundle is unavailable or invalid."""


class Damaged(Exception):
    """The pack with this name is corrupt."""


def is_pack(name: str) -> bool:
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
        links, places = lay_out(manifest, partial)
        fill(packs, places)
        make_links(links, partial)
        os.rename(partial, target)
    except OSError as error:
        raise Failure(f"cannot unpack the bundle: {error}") from error


def read_manifest(packs: list[str], chunks: list[str], digest: str) -> bytes:
    found: dict[bytes, bytes] = {}
    hashes = [bytes.fromhex(text) for text in chunks]
    for pack in packs:
        missing = set(hashes) - found.keys()
        if missing:
            found.update(read_chunks(pack, missing))
    manifest = b"".join(found.get(sha, b"") for sha in hashes)
    if hashlib.sha256(manifest).hexdigest() != digest:
        raise Failure("the bundle's packs do not contain its manifest")
    return manifest


def lay_out(manifest: bytes, base: str) -> tuple[dict[str, str], dict[bytes, list[Place]]]:
    """Create folders and empty files; returns the links, and where chunks must be written."""
    links: dict[str, str] = {}
    places: dict[bytes, list[Place]] = {}
    seen: set[str] = set()

    def path_of(name: str) -> str:
        if name in seen or name != os.path.normpath(name) or leaves(name) or name == os.curdir:
            raise Failure(f"{name!r} is not a valid name in a bundle")
        seen.add(name)
        return os.path.join(base, name)

    path, offset, mode = "", 0, 0
    for line in manifest.splitlines():
        value = json.loads(line)
        if isinstance(value, list):
            places.setdefault(bytes.fromhex(value[0]), []).append(Place(path, offset, mode))
            offset += value[1]
        elif "folder" in value:
            os.mkdir(path_of(value["folder"]))
        elif "link" in value:
            links[path_of(value["link"])] = value["target"]
        else:
            path, offset, mode = path_of(value["file"]), 0, 0o755 if value["executable"] else 0o644
            write(path, 0, b"", mode)
    return links, places


def leaves(name: str) -> bool:
    return os.path.isabs(name) or name.split(os.sep, 1)[0] == os.pardir


def fill(packs: list[str], places: dict[bytes, list[Place]]) -> None:
    """Write all chunks to their files."""

    def take(pack: str) -> None:
        for sha, chunk in read_chunks(pack, places.keys()):
            for path, offset, mode in places.pop(sha, ()):  # two packs may contain it
                write(path, offset, chunk, mode)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(take, packs))
    if places:
        raise Failure(f"the bundle's packs lack {len(places)} of its chunks")


def read_chunks(pack: str, needed: Any) -> Iterator[tuple[bytes, bytes]]:
    """The needed chunks of a pack with their SHA-256, each verified."""
    name = os.path.basename(pack)
    with open(pack, "rb") as source:
        index = source.read(int(name.partition(".")[2]) * RECORD.size)
        if hashlib.sha256(index).hexdigest() != name.partition(".")[0]:
            raise Damaged(name)
        buffer, pieces = b"", inflated(source)
        left = sum(sha in needed for sha, _ in RECORD.iter_unpack(index))
        start = 0
        for sha, size in RECORD.iter_unpack(index):
            if not left:
                return
            while len(buffer) - start < size:
                try:
                    buffer, start = buffer[start:] + next(pieces), 0
                except (StopIteration, zlib.error):
                    raise Damaged(name) from None
            if sha in needed:
                chunk = buffer[start : start + size]
                if hashlib.sha256(chunk).digest() != sha:
                    raise Damaged(name)
                left -= 1
                yield sha, chunk
            start += size


def inflated(source: IO[bytes]) -> Iterator[bytes]:
    """Decompress consecutive zlib streams."""
    engine, data = zlib.decompressobj(), b""
    while True:
        data = data or source.read(PIECE)
        if not data:
            return
        yield engine.decompress(data, PIECE)
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
