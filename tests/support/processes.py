"""Whether a process has come to its end, whoever its parent is now."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["await_end"]

SECONDS = 30.0


def await_end(pid: int) -> bool:
    """Whether it ends within a time that only a process that was not killed exceeds.

    The kernel may take a moment to end what it was told to; and where nobody collects orphans, as
    in some containers, they stay as zombies, which have ended.
    """
    deadline = time.monotonic() + SECONDS
    while not _has_ended(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:  # gone meanwhile; or there is no /proc
        return Path("/proc/self/stat").exists()
    return state in "ZX"
