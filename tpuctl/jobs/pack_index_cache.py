"""What this machine remembers of packs: their indexes, which never change."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from tpuctl.files import private_folder
from tpuctl.jobs.pack_format import Index, read_index

__all__ = ["PackIndexCache", "cache_home"]


def cache_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Where tpuctl keeps what it can make again; `TPUCTL_CONFIG_HOME` moves that too."""
    if config_home := environment.get("TPUCTL_CONFIG_HOME"):
        return Path(config_home).expanduser() / "cache"
    import platformdirs

    return Path(platformdirs.user_cache_dir("tpuctl", appauthor=False))


class PackIndexCache:
    """The indexes of one bucket's packs, each in a file of its name.

    A file that is damaged, or that cannot be written, is as if it were not there.
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

    def keep(self, packs: Collection[str]) -> None:
        """Forget all others: the bucket has them no more."""
        with suppress(OSError):
            for path in self._folder.iterdir():
                if path.name not in packs:
                    path.unlink()
