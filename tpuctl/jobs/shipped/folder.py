"""The folder of a job's attempt on a worker: files written whole or not at all, and locks.

Like `supervisor.py` and `job_parent.py`, which import it, this file is sent to workers as it is:
standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from typing import Any

__all__ = ["ENDED", "Folder", "private"]

ENDED = ("succeeded", "failed", "stopped", "timed_out", "lost")  # states of an attempt's record
FULL = (errno.ENOSPC, errno.EDQUOT)
SPARES, SPARE = 8, 1 << 13  # files set aside, and bytes of each, for a job that fills the disk


class Folder:
    """One attempt's folder. Its processes speak to each other through these files alone."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON file's value; None when it is not there."""
        try:
            with open(self.file(name), encoding="utf-8") as source:
                value: dict[str, Any] = json.load(source)
                return value
        except FileNotFoundError:
            return None

    def write(self, name: str, value: dict[str, Any]) -> None:
        """On a full disk, into a file that was set aside: the room is taken already."""
        text = json.dumps(value).encode()
        try:
            self.replace(name, text)
        except OSError as error:
            if error.errno not in FULL or not self.fill_spare(name, text):
                raise

    def replace(self, name: str, text: bytes) -> None:
        temporary = self.temporary(name)
        with open(temporary, "wb", opener=private) as target:
            put(target, text)
        os.replace(temporary, self.file(name))

    def temporary(self, name: str) -> str:
        return self.file(f".{name}.{os.getpid()}")

    def fill_spare(self, name: str, text: bytes) -> bool:
        """Let a file that was set aside become this one; False when none is left."""
        temporary = self.temporary(name)
        for number in range(SPARES):
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.file(f"spare.{number}"), temporary)  # nobody else has it then
                with open(temporary, "r+b") as target:
                    put(target, text)  # blanks follow, which JSON does not mind
                os.replace(temporary, self.file(name))
                return True
        return False

    def reserve_space(self) -> None:
        """Take some room for later. OSError where there is none, and the job had better not run."""
        try:
            for number in range(SPARES):
                with open(self.file(f"spare.{number}"), "wb", opener=private) as spare:
                    spare.write(b" " * SPARE)
        except OSError:
            self.release_space()
            raise

    def release_space(self) -> None:
        """Free the room that is left of what was set aside."""
        for number in range(SPARES):
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.file(f"spare.{number}"))

    def is_full(self) -> bool:
        """Whether the machine's disk is."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize < SPARES * SPARE

    def lock(self, name: str, patience: float = 0.0) -> int | None:
        """Take the lock and return its descriptor, or None when another process holds it.

        Patience is for `is_locked` of another process, which holds it for an instant.
        """
        handle = os.open(self.file(name), os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return handle
            except OSError:
                if time.monotonic() >= deadline:
                    os.close(handle)
                    return None
                time.sleep(0.02)

    def is_locked(self, name: str) -> bool:
        """Whether a process holds the lock. Those who look at once do not see each other."""
        handle = os.open(self.file(name), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def log(self, text: str) -> None:
        """Add a line of our own to the job's log."""
        with contextlib.suppress(OSError), open(self.file("log"), "a+b", opener=private) as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - 1))
            start = "" if log.read() in (b"", b"\n") else "\n"
            log.write((f"{start}tpuctl: {text}\n").encode())


def put(target: Any, text: bytes) -> None:
    target.write(text)
    target.flush()
    os.fsync(target.fileno())


def private(path: str, flags: int) -> int:
    """Opens files for their owner alone."""
    return os.open(path, flags, 0o600)
