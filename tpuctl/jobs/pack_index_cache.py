"""A local cache of the indexes of packs, which never change."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from tpuctl.files import private_folder
from tpuctl.jobs.pack_format import Index, read_index

__all__ = ["PackIndexCache", "cache_home"]


def cache_home(environment: Mapping[str, str] = os.environ) -> Path:
    """tpuctl's cache folder; it is below `TPUCTL_CONFIG_HOME` if that is set."""
    if config_home := environment.get("TPUCTL_CONFIG_HOME"):
        return Path(config_home).expanduser() / "cache"
    import platformdirs

    return Path(platformdirs.user_cache_dir("tpuctl", appauthor=False))


class PackIndexCache:
    """The indexes of one bucket's packs, each in a file named like the pack.

    A file that is corrupt, or cannot be written, is ignored.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, pack: str) -> Index | None:
        try:
            return read_index(pack, (self._folder / pack).read_bytes())
        except OSError:
            return None

    def put(self, pack: str, index: bytes) -> None:
        partial = self._folder / f".{pack}.{os.getpid()}"
        with suppress(OSError):
            private_folder(self._folder)
            partial.write_bytes(index)
            partial.replace(self._folder / pack)

    def retain(self, packs: Collection[str]) -> None:
        """Remove the indexes of all others, which the bucket no longer has."""
        with suppress(OSError):
            for path in self._folder.iterdir():
                if path.name not in packs:
                    path.unlink()
