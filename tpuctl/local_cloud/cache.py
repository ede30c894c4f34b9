"""What tpuctl keeps on this computer to be fast: images, packages, downloads, and the Pythons of
jobs. All of it is built or downloaded again when it is needed."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpuctl.environments import try_exclusive
from tpuctl.files import archives_folder, archives_lock, cache_home, disk_usage
from tpuctl.local_cloud.folder_removal import remove_folder
from tpuctl.local_cloud.machine_images import MARKER, ImageStore

PACKAGES = ".tpuctl/envs/*/"  # of jobs, below their home
DIGEST = re.compile(r"-?[0-9a-f]{16,}$")
DAY = 24 * 3600
Kind = Literal["image", "compiler", "packages", "downloads", "tool"]


@dataclass(frozen=True)
class CacheItem:
    """A folder of the cache, last used at a Unix timestamp. `keep_reason` is empty if it may be
    deleted."""

    kind: Kind
    path: Path
    bytes: int
    last_used: float
    keep_reason: str = ""

    @property
    def name(self) -> str:
        """Its folder's name, without the digest of its content."""
        return DIGEST.sub("", self.path.name) or self.path.name[:8]

    @property
    def days(self) -> int:
        """Days since it was used."""
        return max(0, int(time.time() - self.last_used) // DAY)


def cache_items(local_home: Path, older_than: float = 0.0) -> list[CacheItem]:
    """Everything in the cache. `older_than`: keep what was used within so many seconds.

    The images of machines of the local cloud in `local_home` are in use, also while it is stopped.
    """
    with ExitStack() as locks:
        return list(_items(local_home, older_than, locks))


def cache_size() -> int:
    """The bytes of all items."""
    return sum(disk_usage(path) for _, path in _folders(ImageStore()))


def prune(paths: Collection[Path], local_home: Path, older_than: float = 0.0) -> list[CacheItem]:
    """Delete these items, except those in use meanwhile; returns what was deleted.

    A program that needs one waits until then, and builds it again.
    """
    deleted = []
    with ExitStack() as locks:
        for item in _items(local_home, older_than, locks, only=paths):
            if item.keep_reason:
                continue
            (item.path / MARKER).unlink(missing_ok=True)  # never used if the rest remains
            if item.kind == "downloads":  # machines have this folder open
                for path in item.path.iterdir():
                    remove_folder(path) if path.is_dir() else path.unlink(missing_ok=True)
            else:
                remove_folder(item.path)
            deleted.append(item)
    return deleted


def _items(
    local_home: Path, older_than: float, locks: ExitStack, only: Collection[Path] | None = None
) -> Iterator[CacheItem]:
    """The items, with their locks held from then on."""
    store = ImageStore()
    linked = {link.resolve() for link in local_home.glob("machines/*/image")}
    is_rehearsing = not try_exclusive(store.rehearsals_lock, locks)

    def keep_reason(kind: str, path: Path, last_used: float) -> str:
        if time.time() - last_used < older_than:
            return "used recently"
        if kind == "downloads":
            # pip does without; uv shares a lock of its cache while it installs
            return "" if try_exclusive(path / "uv" / ".lock", locks) else "in use"
        if kind == "tool":
            return "" if try_exclusive(archives_lock(path), locks) else "in use"
        if kind == "image" and (
            path.resolve() in linked
            or not all(try_exclusive(lock, locks) for lock in store.locks_of(path))
        ):
            return "in use"
        if is_rehearsing:
            return "rehearsal running"
        return ""

    for kind, path in _folders(store):
        if only is None or path in only:
            used = _last_use(kind, path)
            yield CacheItem(kind, path, disk_usage(path), used, keep_reason(kind, path, used))


def _last_use(kind: str, path: Path) -> float:
    if kind in ("downloads", "tool"):
        statuses = (file.lstat() for file in path.rglob("*"))
        return max((status.st_mtime for status in statuses), default=0.0)
    marker = path / MARKER
    return (marker if marker.exists() else path).stat().st_mtime


def _folders(store: ImageStore) -> Iterator[tuple[Kind, Path]]:
    compilations = store.cache / "compile"
    jobs = compilations / "jobs"
    for path in store.images():
        yield "image", path
    for path in sorted(compilations.glob("*-*/")):
        yield "compiler", path
    for home in (cache_home() / "rehearsals" / "home", jobs):
        for path in sorted(home.glob(PACKAGES)):
            yield "packages", path
    if store.downloads.is_dir() and any(store.downloads.iterdir()):
        yield "downloads", store.downloads
    for path in sorted(archives_folder().glob("*/")):
        yield "tool", path
