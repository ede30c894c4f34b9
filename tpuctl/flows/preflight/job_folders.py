"""Copies of a job's folder as a worker has it, in which programs may write."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

from tpuctl.jobs.bundle import Bundle

# Larger files are not copied but cloned, if the file system can, or else linked.
MAX_COPIED_BYTES = 1 << 24
FICLONE = 0x40049409  # linux/fs.h


class JobFolder:
    """A copy of a bundle's files in a new folder.

    A program that overwrites a large file, which is linked, changes the original.
    """

    def __init__(self, bundle: Bundle, path: Path) -> None:
        self.path = path
        self._copied: dict[Path, tuple[int, ...]] = {}
        manifest = json.loads(bundle.manifest)
        path.mkdir()
        for name in manifest["folders"]:
            (path / name).mkdir(parents=True, exist_ok=True)
        for name, file in manifest["files"].items():
            source = bundle.sources[file["sha256"]]
            _copy(source.path, path / name, 0o755 if file["executable"] else 0o644)
        for name, target in manifest["links"].items():
            (path / name).symlink_to(target)
        for name in (*manifest["files"], *manifest["links"]):
            self._copied[path / name] = _stamp(path / name)

    def keep_written(self) -> int:
        """Delete what is unchanged, and return how many files remain: those that were written."""
        for path, stamp in self._copied.items():
            with suppress(OSError):
                if _stamp(path) == stamp:
                    path.unlink()
        remaining = 0
        for folder, _, files in os.walk(self.path, topdown=False):
            remaining += len(files)
            with suppress(OSError):  # it is not empty
                os.rmdir(folder)  # noqa: PTH106
        return remaining


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.lstat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _copy(source: Path, target: Path, mode: int) -> None:
    if source.stat().st_size <= MAX_COPIED_BYTES:
        shutil.copyfile(source, target)
    elif not _clone(source, target):
        try:
            os.link(source, target)
        except OSError:  # on another file system
            target.symlink_to(source)
        return
    target.chmod(mode)


def _clone(source: Path, target: Path) -> bool:
    """Copy a file without its blocks, which both share until one is written."""
    try:
        import fcntl

        with source.open("rb") as original, target.open("wb") as copy:
            fcntl.ioctl(copy.fileno(), FICLONE, original.fileno())
    except (ImportError, OSError):
        target.unlink(missing_ok=True)
        return False
    return True
