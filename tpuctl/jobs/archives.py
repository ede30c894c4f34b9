"""Archives: the objects that hold the content of bundles' files.

An archive is a compressed tar file. Its members are named by the SHA-256 of their content, and it
is named by the SHA-256 of their names, so that equal content is found whatever bundle uploaded it.
Small files share an archive. A large file has one of its own, and is uploaded only if it changed.

A bundle's record says which archives it needs: two lines of JSON, compressed, of which the first is
the manifest and the second a list of `{"files": [SHA-256], "size": BYTES}`, one for each archive.
`shipped/unpack.py` reads both.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO

from tpuctl.jobs.bundle import Bundle, Source, file_changed_error

MAX_SMALL_FILE_BYTES = 4_000_000  # larger files have an archive of their own
MAX_SHARED_ARCHIVES = 8  # of one bundle; beyond that, they are merged
MAX_OVERHEAD = 2  # an archive is reused if at least one in MAX_OVERHEAD of its bytes is needed
COMPRESSION_LEVEL = 3  # twice as fast as the default compression level, and a few percent larger
SAMPLE_BYTES = 1 << 14  # of a file that are compressed to test whether it is compressible
READ_BYTES = 1 << 20
CORRUPT = (OSError, EOFError, zlib.error, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class Archive:
    """Files that are uploaded together, by the SHA-256 of their content."""

    files: tuple[str, ...]
    size: int  # total bytes, not compressed

    @property
    def name(self) -> str:
        return hashlib.sha256("".join(self.files).encode()).hexdigest() + ".tar.gz"


def choose_archives(sources: Mapping[str, Source], existing: Iterable[Archive]) -> list[Archive]:
    """Archives that together contain all the files: existing ones, and new ones for the rest.

    An archive of which little is needed is not reused, since every worker would download the rest
    of it too. Nor are many small ones, whose number would grow with every run.
    """
    small = {
        sha: source.size for sha, source in sources.items() if source.size <= MAX_SMALL_FILE_BYTES
    }
    large = [Archive((sha,), sources[sha].size) for sha in sources if sha not in small]
    remaining = dict(small)

    def useful_bytes(archive: Archive) -> int:
        return sum(remaining.get(sha, 0) for sha in archive.files)

    reused: list[Archive] = []
    for archive in sorted(existing, key=lambda archive: (-useful_bytes(archive), archive.name)):
        is_useful = not remaining.keys().isdisjoint(archive.files)
        if is_useful and useful_bytes(archive) * MAX_OVERHEAD >= archive.size:
            reused.append(archive)
            for sha in archive.files:
                remaining.pop(sha, None)
    if len(reused) + bool(remaining) > MAX_SHARED_ARCHIVES:
        del reused[1:]
        kept = set(reused[0].files)
        remaining = {sha: size for sha, size in small.items() if sha not in kept}
    new = [Archive(tuple(remaining), sum(remaining.values()))] if remaining else []
    return [*reused, *new, *large]


def write_archive(path: Path, archive: Archive, sources: Mapping[str, Source]) -> None:
    """Write an archive, in constant memory. Raises Conflict if a file has changed meanwhile."""
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as target:
        # Incompressible data is stored as it is: compressing it would take most of the time.
        for level, group in groupby(archive.files, lambda sha: _compression_level(sources[sha])):
            with gzip.GzipFile("", "wb", level, target, mtime=0) as stream:
                for sha in group:
                    _write_member(stream, sha, sources[sha])
        target.write(gzip.compress(bytes(2 * tarfile.BLOCKSIZE), mtime=0))  # the end of a tar file
    partial.replace(path)


def _compression_level(source: Source) -> int:
    with _open(source) as file:
        sample = file.read(SAMPLE_BYTES)
    is_compressible = len(zlib.compress(sample, 1)) < len(sample) * 0.95
    return COMPRESSION_LEVEL if is_compressible or len(sample) < SAMPLE_BYTES else 0


def _open(source: Source) -> IO[bytes]:
    try:
        return source.path.open("rb")
    except OSError:  # it could be read when it was hashed
        raise file_changed_error(source.path) from None


def _write_member(target: gzip.GzipFile, sha: str, source: Source) -> None:
    header = tarfile.TarInfo(sha)
    header.size = remaining = source.size
    target.write(header.tobuf(tarfile.GNU_FORMAT))
    hasher = hashlib.sha256()
    with _open(source) as file:
        while data := file.read(min(READ_BYTES, remaining)):
            hasher.update(data)
            target.write(data)
            remaining -= len(data)
    target.write(bytes(-source.size % tarfile.BLOCKSIZE))
    if hasher.hexdigest() != sha:
        raise file_changed_error(source.path)


def encode_record(bundle: Bundle, archives: Iterable[Archive]) -> bytes:
    """The record of a bundle whose files are in these archives."""
    ordered = sorted(archives, key=lambda archive: archive.name)
    index = [{"files": archive.files, "size": archive.size} for archive in ordered]
    return gzip.compress(bundle.manifest + b"\n" + json.dumps(index).encode(), mtime=0)


def read_record(record: bytes) -> list[Archive]:
    """The archives that a record lists; none if it is corrupt."""
    try:
        index = json.loads(gzip.decompress(record).partition(b"\n")[2])
        return [Archive(tuple(map(str, item["files"])), int(item["size"])) for item in index]
    except CORRUPT:
        return []


def read_files(record: bytes) -> dict[str, str] | None:
    """The SHA-256 of each file that a record's manifest lists; None if it is corrupt."""
    try:
        files = json.loads(gzip.decompress(record).partition(b"\n")[0])["files"]
        return {str(name): str(file["sha256"]) for name, file in files.items()}
    except (*CORRUPT, AttributeError):
        return None
