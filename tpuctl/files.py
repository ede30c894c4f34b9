"""Files and folders of the user: read without waiting for ever, made for the user alone."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["private_folder", "read_file"]


def read_file(path: Path, most: int) -> bytes:
    """What is in a file of at most so many bytes. Raises OSError, also for what is no file.

    Pipes and devices are not read: some never end, and others wait for a writer.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as source:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "It is not a file", str(path))
        data = source.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"It is larger than {most} bytes", str(path))
    return data


def private_folder(path: Path) -> Path:
    """The folder, made if need be: it and all above it that are made are the user's alone.

    Of what is there already nothing is changed. `mkdir(parents=True, mode=0o700)` would leave
    those above it to the umask.
    """
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    return path
