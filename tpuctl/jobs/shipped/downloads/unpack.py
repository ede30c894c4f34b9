"""Unpacks a bundle's files from archives, and verifies all of them by their SHA-256.

Like `fetch.py`, which uses it, this file is sent to workers as it is: standard library only, Python
3.8 and later. `archives.py` describes archives and records, `bundle.py` manifests.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tarfile
import zlib

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO, Any

READ_BYTES = 1 << 20
MAX_PARALLEL_ARCHIVES = 4  # archives unpacked in parallel
DAMAGE = (  # errors caused by the content of an archive or a record
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    gzip.BadGzipFile,
    tarfile.TarError,
    zlib.error,
)


class Failure(Exception):
    """The bundle is unavailable or invalid."""


class CorruptFile(Exception):
    """The archive or record with this name is corrupt."""


class Record:
    """A bundle's manifest, and the names of the archives that contain its files."""

    def __init__(self, manifest: dict[str, Any], archives: list[str]) -> None:
        self.manifest = manifest
        self.archives = archives


def read_record(path: str, digest: str) -> Record:
    """The record of the bundle with this digest, from the file at `path`.

    Raises CorruptFile if that is not the record of a complete bundle.
    """
    try:
        with gzip.open(path) as source:
            manifest, _, index = source.read().partition(b"\n")
        archives = [archive["files"] for archive in json.loads(index)]
        names = [sha256("".join(files)) + ".tar.gz" for files in archives]
        record = Record(json.loads(manifest), names)
        needed = {file["sha256"] for file in record.manifest["files"].values()}
        if sha256(manifest) != digest or not needed.issubset(set().union(*archives)):
            raise ValueError("not this bundle's record")
    except DAMAGE as error:
        raise CorruptFile(os.path.basename(path)) from error
    return record


def unpack(folder: str, record: Record, target: str) -> None:
    """Unpack a bundle, whose archives are in `folder`, into the folder `target`, atomically.

    Raises CorruptFile, and Failure, for files or links outside the target, too.
    """
    partial = target + ".part"
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    try:
        paths = member_paths(record.manifest, partial)
        for name in sorted(record.manifest["folders"]):  # each before those that it contains
            os.mkdir(paths[name])
        write_files(folder, record, paths)
        make_links({paths[name]: to for name, to in record.manifest["links"].items()}, partial)
        os.rename(partial, target)
    except OSError as error:
        raise Failure(f"cannot unpack the bundle: {error}") from error


def member_paths(manifest: dict[str, Any], base: str) -> dict[str, str]:
    """The path of each member. Raises Failure for names outside the folder `base`."""
    paths: dict[str, str] = {}
    for name in (*manifest["folders"], *manifest["files"], *manifest["links"]):
        is_outside = os.path.isabs(name) or name.split(os.sep, 1)[0] in (os.curdir, os.pardir)
        if name in paths or name != os.path.normpath(name) or is_outside:
            raise Failure(f"{name!r} is not a valid name in a bundle")
        paths[name] = os.path.join(base, name)
    return paths


def write_files(folder: str, record: Record, paths: dict[str, str]) -> None:
    """Write all files, each from one of the archives that contain it."""
    destinations: dict[str, list[tuple[str, int]]] = {}
    for name, file in record.manifest["files"].items():
        mode = 0o755 if file["executable"] else 0o644
        destinations.setdefault(file["sha256"], []).append((paths[name], mode))

    def extract(archive: str) -> None:
        try:
            names = extract_members(os.path.join(folder, archive), destinations)
            if sha256("".join(names)) + ".tar.gz" != archive:
                raise ValueError("not all of its members")
        except DAMAGE as error:
            raise CorruptFile(archive) from error

    for_each(record.archives, extract, MAX_PARALLEL_ARCHIVES)


def extract_members(path: str, destinations: dict[str, list[tuple[str, int]]]) -> list[str]:
    """Write members to their destinations, of which it removes them; returns all their names.

    Raises ValueError if one does not have the SHA-256 that is its name.
    """
    names = []
    with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            names.append(member.name)
            files = destinations.pop(member.name, None)  # another archive may contain it, too
            if files is None:
                continue
            source = archive.extractfile(member)
            if source is None or write(source, files[0][0]) != member.name:
                raise ValueError("wrong checksum")
            for other, _ in files[1:]:
                shutil.copyfile(files[0][0], other)
            for destination, mode in files:
                os.chmod(destination, mode)
    return names


def write(source: IO[bytes], path: str) -> str:
    """Write a new file; returns its SHA-256."""
    hasher = hashlib.sha256()
    with open(path, "xb") as target:
        for data in iter(lambda: source.read(READ_BYTES), b""):
            hasher.update(data)
            target.write(data)
    return hasher.hexdigest()


def for_each(names: Sequence[str], work: Callable[[str], None], max_parallel: int) -> None:
    """Do some work for each name, in several threads."""
    if len(names) > 1:
        from concurrent.futures import ThreadPoolExecutor  # it takes a while to load

        with ThreadPoolExecutor(max_parallel) as pool:
            list(pool.map(work, names))
    else:
        for name in names:
            work(name)


def sha256(data: str | bytes) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def make_links(links: dict[str, str], base: str) -> None:
    """Create the links last, so that nothing is written through one, and check their targets."""
    for path, target in links.items():
        os.symlink(target, path)
    inside = os.path.realpath(base)
    for path, target in links.items():
        end = os.path.realpath(path)
        if os.path.isabs(target) or os.path.commonpath([inside, end]) != inside:
            raise Failure(f"{os.path.relpath(path, base)} points outside the bundle")
