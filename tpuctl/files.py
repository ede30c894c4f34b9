"""Bounded file reads that never block, and folders of the user's own."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

# github.com/git-lfs/git-lfs/blob/main/docs/spec.md
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
MAX_LFS_POINTER_BYTES = 1024


def cache_home(environment: Mapping[str, str] = os.environ) -> Path:
    """tpuctl's cache folder; it is below `TPUCTL_CONFIG_HOME` if that is set."""
    if config_home := environment.get("TPUCTL_CONFIG_HOME"):
        return Path(config_home).expanduser() / "cache"
    import platformdirs

    return Path(platformdirs.user_cache_dir("tpuctl", appauthor=False))


def archives_folder() -> Path:
    """Where archives of what jobs bring are: a folder for each Python and uv."""
    return cache_home() / "tools"


def archives_lock(folder: Path) -> Path:
    """The file whose lock is held while one of these folders is changed, and shared while an
    archive in it is used."""
    return folder.with_name(f"{folder.name}.lock")


def state_home(environment: Mapping[str, str] = os.environ) -> Path:
    """tpuctl's state folder; it is below `TPUCTL_CONFIG_HOME` if that is set."""
    if config_home := environment.get("TPUCTL_CONFIG_HOME"):
        return Path(config_home).expanduser() / "state"
    import platformdirs

    return Path(platformdirs.user_state_dir("tpuctl", appauthor=False))


def disk_usage(folder: Path) -> int:
    """The bytes that a folder takes on its disk, without what other folders link to."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted meanwhile
                total += os.lstat(os.path.join(top, name)).st_blocks * 512  # noqa: PTH118
    return total


def is_generated_folder(folder: Path) -> bool:
    """Whether a folder holds no sources of the user's: hidden, or made by programs."""
    name = folder.name
    is_generated = name.startswith(".") or name in ("__pycache__", "node_modules", "site-packages")
    return is_generated or (folder / "pyvenv.cfg").exists()


def is_lfs_pointer(source: IO[bytes], size: int) -> bool:
    """Whether a file has a pointer of Git LFS instead of its content. Reads its beginning."""
    return size < MAX_LFS_POINTER_BYTES and source.read(len(LFS_POINTER)) == LFS_POINTER


def is_file(text: str | Path) -> bool:
    """Whether a user's text is the path of a file: False if it cannot be one, as a long message.

    Before Python 3.14, `Path.is_file` raises OSError for a text that is too long.
    """
    return os.path.isfile(text)  # noqa: PTH113


def is_folder(text: str | Path) -> bool:
    """Like `is_file`, for folders."""
    return os.path.isdir(text)  # noqa: PTH112


def exists(text: str | Path) -> bool:
    """Like `is_file`, for anything that a path may lead to."""
    return os.path.exists(text)  # noqa: PTH110


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read a regular file of up to `max_bytes`. Raises OSError, also if it is larger or not a file.

    Pipes and devices are not read: some never end, others block until there is a writer.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as source:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        data = source.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"Larger than {max_bytes} bytes", str(path))
    return data


def private_folder(path: Path) -> Path:
    """Create the folder and its parents as needed, accessible to the user only.

    Existing folders are not changed. `mkdir(parents=True, mode=0o700)` would create the parents
    with the umask.
    """
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    return path
