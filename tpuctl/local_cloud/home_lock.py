"""The lock that a server holds on its folder, so that no two servers share one.

The system releases it when the process ends, however it ends. It belongs to the file, whatever path
leads to it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from filelock import lock_descriptor

LOCK_FILE = "server.lock"
_TRIES, _PAUSE = 10, 0.05  # while `home_holder` of another process has it


class HomeInUse(Exception):
    """Another server serves the folder."""


def lock_home(home: Path) -> int:
    """Lock the folder for this process; returns the descriptor to close. Raises HomeInUse."""
    descriptor = os.open(home / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(_TRIES):
        if lock_descriptor(descriptor, blocking=False):
            os.pwrite(descriptor, f"{os.getpid():<32}".encode(), 0)  # at once: it is never empty
            return descriptor
        time.sleep(_PAUSE)
    holder = os.pread(descriptor, 32, 0).decode().strip()
    os.close(descriptor)
    raise HomeInUse(f"process {holder} serves {home}")


def home_holder(home: Path) -> int | None:
    """The process whose server has the folder locked; None if none has."""
    try:
        descriptor = os.open(home / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        while not lock_descriptor(descriptor, blocking=False):
            if text := os.pread(descriptor, 32, 0):
                return int(text)
            time.sleep(_PAUSE)  # it has the lock, and will say so
        return None
    finally:
        os.close(descriptor)
