"""Caches the chunk lists of large files, so that unchanged files are not read again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tpuctl.files import private_folder

__all__ = ["WORTH_BYTES", "ChunkCache", "Chunks"]

WORTH_BYTES = 1 << 20  # reading smaller files is as fast as the cache
SETTLED_NS = 2_000_000_000  # a newer file may change again without a new timestamp
FOLDERS = 20  # whose caches are kept

Chunks = list[tuple[bytes, int]]  # SHA-256 and size of each, in order


class ChunkCache:
    """The chunk lists of one folder's large files, valid while a file's inode, size and timestamps
    are unchanged: every write changes its ctime, which only the kernel can set.

    A cache that is corrupt, or cannot be written, is ignored.
    """

    def __init__(self, memory: Path | None, root: Path) -> None:
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
        self._path = memory / f"{name}.json" if memory is not None else None
        self._before: dict[str, Any] = {}
        self._now: dict[str, Any] = {}
        if self._path is not None:
            with suppress(OSError, ValueError):
                self._before = dict(json.loads(self._path.read_text("ascii")))

    def get(self, name: str, status: os.stat_result) -> Chunks | None:
        """The file's chunks if it is cached and unchanged, otherwise None."""
        with suppress(KeyError, TypeError, ValueError):
            stamp, chunks = self._before[name]
            if stamp == _stamp(status):
                file_chunks = [(bytes.fromhex(text), int(size)) for text, size in chunks]
                self._now[name] = [stamp, chunks]
                return file_chunks
        return None

    def put(self, name: str, before: os.stat_result, after: os.stat_result, chunks: Chunks) -> None:
        """Cache the chunks of a file read between `before` and `after`, if that is safe."""
        is_settled = time.time_ns() - max(before.st_mtime_ns, before.st_ctime_ns) > SETTLED_NS
        if before.st_size >= WORTH_BYTES and is_settled and _stamp(before) == _stamp(after):
            self._now[name] = [_stamp(before), [(sha.hex(), size) for sha, size in chunks]]

    def had(self, name: str) -> bool:
        """Whether the file was in the cache and is unchanged."""
        return name in self._before and self._now.get(name) == self._before[name]

    def save(self) -> None:
        """Write the cache, and delete those of folders that were not bundled lately."""
        if self._path is None or self._now == self._before:
            return
        with suppress(OSError):
            private_folder(self._path.parent)
            partial = self._path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(self._now), "ascii")
            partial.replace(self._path)
            files = sorted(self._path.parent.iterdir(), key=lambda path: path.stat().st_mtime)
            for path in files[:-FOLDERS]:
                path.unlink()


def _stamp(status: os.stat_result) -> list[int]:
    times = [status.st_mtime_ns, status.st_ctime_ns]
    return [status.st_dev, status.st_ino, status.st_size, *times]
