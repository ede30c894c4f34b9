"""A folder of a program on a machine: files written whole or not at all, and locks.

The supervisor of an attempt and a job's recoverer each have one. Like the programs that import it,
this file is sent to machines as it is: standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

ENDED = ("succeeded", "failed", "stopped", "timed_out", "lost")  # states of an attempt's record
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
SPARE_FILES, SPARE_BYTES = 8, 1 << 13  # reserved for writes on a full disk; bytes of each file


class Folder:
    """The files of one folder. Its processes communicate only through them."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON file's value; None if it does not exist."""
        try:
            with open(self.file(name), encoding="utf-8") as source:
                value: dict[str, Any] = json.load(source)
                return value
        except FileNotFoundError:
            return None

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Write a JSON file atomically; on a full disk, to a reserved file."""
        text = json.dumps(value).encode()
        try:
            self.replace(name, text)
        except OSError as error:
            if error.errno not in DISK_FULL or not self.write_to_spare(name, text):
                raise

    def replace(self, name: str, text: bytes) -> None:
        temporary = self.temporary(name)
        with open(temporary, "wb", opener=private) as target:
            write_synced(target, text)
        os.replace(temporary, self.file(name))

    def temporary(self, name: str) -> str:
        return self.file(f".{name}.{os.getpid()}")

    def write_to_spare(self, name: str, text: bytes) -> bool:
        """Replace the file by a reserved one; False if none is left."""
        temporary = self.temporary(name)
        for number in range(SPARE_FILES):
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.file(f"spare.{number}"), temporary)  # no other process has it then
                with open(temporary, "r+b") as target:
                    write_synced(target, text)  # JSON allows the blanks that follow
                os.replace(temporary, self.file(name))
                return True
        return False

    def reserve_space(self) -> None:
        """Reserve disk space for later writes. Raises OSError: without it, no job should run."""
        try:
            for number in range(SPARE_FILES):
                with open(self.file(f"spare.{number}"), "wb", opener=private) as spare:
                    spare.write(b" " * SPARE_BYTES)
        except OSError:
            self.release_space()
            raise

    def release_space(self) -> None:
        """Free the rest of the reserved disk space."""
        for number in range(SPARE_FILES):
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.file(f"spare.{number}"))

    def is_full(self) -> bool:
        """Whether the machine's disk is full."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize < SPARE_FILES * SPARE_BYTES

    def lock(self, name: str, timeout: float = 0.0) -> int | None:
        """As `take_lock`."""
        return take_lock(self.file(name), timeout)

    def is_locked(self, name: str) -> bool:
        """Whether a process holds the lock."""
        return is_locked(self.file(name))

    def job_parent(self) -> int | None:
        """The process whose descendants are the job's; None before it has started the script."""
        parent: int | None = (self.read("started.json") or {}).get("job_parent")
        return parent

    def log(self, text: str) -> None:
        """Append a message from tpuctl to the job's log."""
        with contextlib.suppress(OSError), open(self.file("log"), "a+b", opener=private) as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - 1))
            start = "" if log.read() in (b"", b"\n") else "\n"
            log.write((f"{start}tpuctl: {text}\n").encode())


def write_synced(target: Any, text: bytes) -> None:
    target.write(text)
    target.flush()
    os.fsync(target.fileno())


# Locks. A lock is held until its descriptor is closed, also by the children that inherited it. The
# files remain.


def take_lock(path: str, timeout: float = 0.0) -> int | None:
    """Take the file's lock and return its descriptor, or None if another process holds it.

    A timeout allows for `is_locked` in another process, which holds it for an instant.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError:
            if time.monotonic() >= deadline:
                os.close(handle)
                return None
            time.sleep(0.02)


def wait_for_lock(path: str) -> int:
    """Take the file's lock, when no other process holds it, and return its descriptor."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def is_locked(path: str) -> bool:
    """Whether a process holds the file's lock; concurrent calls do not affect each other.

    Raises OSError, for example if the file may not be read. One that does not exist is not locked.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def private(path: str, flags: int) -> int:
    """An opener for files that only their owner can access."""
    return os.open(path, flags, 0o600)
