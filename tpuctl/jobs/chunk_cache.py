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

__all__ = ["MIN_FILE_BYTES", "ChunkCache", "Chunks"]

MIN_FILE_BYTES = 1 << 20  # reading smaller files is as fast as the cache
MIN_AGE_NS = 2_000_000_000  # a newer file may change again without a new timestamp
MAX_FOLDERS = 20  # whose caches are kept

Chunks = list[tuple[bytes, int]]  # SHA-256 and size of each, in order


class ChunkCache:
    """The chunk lists of one folder's large files, valid while a file's inode, size and timestamps
    are unchanged: every write changes its ctime, which only the kernel can set.

    A cache that is corrupt, or cannot be written, is ignored.
    """

    def __init__(self, folder: Path | None, root: Path) -> None:
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
        self._path = folder / f"{name}.json" if folder is not None else None
        self._saved: dict[str, Any] = {}
        self._current: dict[str, Any] = {}
        if self._path is not None:
            with suppress(OSError, ValueError):
                self._saved = dict(json.loads(self._path.read_text("ascii")))

    def get(self, name: str, status: os.stat_result) -> Chunks | None:
        """The file's chunks if it is cached and unchanged, otherwise None."""
        with suppress(KeyError, TypeError, ValueError):
            stamp, chunks = self._saved[name]
            if stamp == _stamp(status):
                file_chunks = [(bytes.fromhex(text), int(size)) for text, size in chunks]
                self._current[name] = [stamp, chunks]
                return file_chunks
        return None

    def put(self, name: str, before: os.stat_result, after: os.stat_result, chunks: Chunks) -> None:
        """Cache the chunks of a file read between `before` and `after`, if that is safe."""
        is_old_enough = time.time_ns() - max(before.st_mtime_ns, before.st_ctime_ns) > MIN_AGE_NS
        if before.st_size >= MIN_FILE_BYTES and is_old_enough and _stamp(before) == _stamp(after):
            self._current[name] = [_stamp(before), [(sha.hex(), size) for sha, size in chunks]]

    def is_unchanged(self, name: str) -> bool:
        """Whether the file was in the cache and is unchanged."""
        return name in self._saved and self._current.get(name) == self._saved[name]

    def save(self) -> None:
        """Write the cache, and delete those of folders that were not bundled lately."""
        if self._path is None or self._current == self._saved:
            return
        with suppress(OSError):
            private_folder(self._path.parent)
            partial = self._path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(self._current), "ascii")
            partial.replace(self._path)
            files = sorted(self._path.parent.iterdir(), key=lambda path: path.stat().st_mtime)
            for path in files[:-MAX_FOLDERS]:
                path.unlink()


def _stamp(status: os.stat_result) -> list[int]:
    times = [status.st_mtime_ns, status.st_ctime_ns]
    return [status.st_dev, status.st_ino, status.st_size, *times]
