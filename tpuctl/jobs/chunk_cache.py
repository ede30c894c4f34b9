"""What large files consisted of when they were read last, so that they need not be read again."""

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

WORTH_BYTES = 1 << 20  # smaller files are read as quickly as they are remembered
SETTLED_NS = 2_000_000_000  # a file written to after that was younger may have kept its times
FOLDERS = 20  # remembered

Chunks = list[tuple[bytes, int]]  # SHA-256 and size of each, in order


class ChunkCache:
    """The large files of one folder. Whatever writes to a file changes its stamp: the system sets
    the time of the last change itself, and nobody else can.

    Memory that is damaged, or cannot be written, is as if it were not there.
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
        """The file's chunks, if it is still the one that was read."""
        with suppress(KeyError, TypeError, ValueError):
            stamp, chunks = self._before[name]
            if stamp == _stamp(status):
                file_chunks = [(bytes.fromhex(text), int(size)) for text, size in chunks]
                self._now[name] = [stamp, chunks]
                return file_chunks
        return None

    def put(self, name: str, before: os.stat_result, after: os.stat_result, chunks: Chunks) -> None:
        """Remember a file that was read between the two, if it is worth it and safe."""
        is_settled = time.time_ns() - max(before.st_mtime_ns, before.st_ctime_ns) > SETTLED_NS
        if before.st_size >= WORTH_BYTES and is_settled and _stamp(before) == _stamp(after):
            self._now[name] = [_stamp(before), [(sha.hex(), size) for sha, size in chunks]]

    def had(self, name: str) -> bool:
        """Whether the file is still the one that was remembered."""
        return name in self._before and self._now.get(name) == self._before[name]

    def save(self) -> None:
        """Keep what is remembered, of this folder and of those bundled last."""
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
