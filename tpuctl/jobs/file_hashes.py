"""Caches the SHA-256 of large files, so that unchanged files are not read again."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tpuctl.files import private_folder

MIN_FILE_BYTES = 1 << 20  # reading smaller files is as fast as the cache
MIN_AGE_NS = 2_000_000_000  # a newer file may change again without a new timestamp
MAX_FILES = 10_000  # the most recently used ones are kept


class FileHashes:
    """The hashes by path, valid while a file's inode, size and timestamps are unchanged: every
    write changes its ctime, which only the kernel can set.

    A cache that is corrupt, or cannot be written, is ignored.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._saved: dict[str, Any] = {}
        self._used: dict[str, Any] = {}
        if path is not None:
            with suppress(OSError, TypeError, ValueError):
                self._saved = dict(json.loads(path.read_text("ascii")))

    def get(self, path: Path, status: os.stat_result) -> str | None:
        """The file's hash if it is cached and the file unchanged."""
        entry = self._saved.get(str(path))
        if isinstance(entry, list) and entry[:-1] == _stamp(status):
            return str(entry[-1])
        return None

    def put(self, path: Path, before: os.stat_result, after: os.stat_result, sha: str) -> None:
        """Cache the hash of a file read between `before` and `after`, if that is safe."""
        is_old_enough = time.time_ns() - max(before.st_mtime_ns, before.st_ctime_ns) > MIN_AGE_NS
        if before.st_size >= MIN_FILE_BYTES and is_old_enough and _stamp(before) == _stamp(after):
            self._used[str(path)] = [*_stamp(before), sha]

    def save(self) -> None:
        """Write the cache."""
        if self._path is None or self._used.items() <= self._saved.items():
            return
        others = {path: self._saved[path] for path in self._saved if path not in self._used}
        latest = list({**others, **self._used}.items())[-MAX_FILES:]
        with suppress(OSError):
            private_folder(self._path.parent)
            partial = self._path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(dict(latest)), "ascii")
            partial.replace(self._path)


def _stamp(status: os.stat_result) -> list[int]:
    times = [status.st_mtime_ns, status.st_ctime_ns]
    return [status.st_dev, status.st_ino, status.st_size, *times]
