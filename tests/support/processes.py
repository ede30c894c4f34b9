"""Waits for the end of a process that need not be a child."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.polling import until


def await_end(pid: int) -> None:
    """Wait for its end; fail after a timeout that only a process that was not killed exceeds.

    The kernel may take a moment to kill a process; and where no init reaps orphans, as in some
    containers, they stay as zombies, which count as ended.
    """
    until(lambda: _has_ended(pid), f"the end of process {pid}")


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:  # it has ended, or there is no /proc
        return Path("/proc/self/stat").exists()
    return state in "ZX"
