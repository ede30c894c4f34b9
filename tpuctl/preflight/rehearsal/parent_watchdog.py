"""Ensures that a rehearsed script never outlives the tpuctl that rehearses it.

Run as `python -S -I parent_watchdog.py COMMAND...`: it starts the job parent, as a worker's
supervisor does, and reads stdin. A byte sends SIGTERM to the script; end of file, also if tpuctl
is killed, kills everything that the script started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

TICK = 0.1
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>


def main(arguments: list[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore)  # controlled only through stdin
    job_parent = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - this process has no other threads
    )
    while job_parent.poll() is None:
        ready, _, _ = select.select([0], [], [], TICK)
        if ready:
            if not os.read(0, 1):
                break
            job_parent.send_signal(signal.SIGUSR2)
    while job_parent.poll() is None:
        job_parent.send_signal(signal.SIGUSR1)
        time.sleep(TICK)
    return job_parent.wait()


def _end_with_parent() -> None:
    """Have the job parent kill everything if this process is killed, where supported."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGUSR1, 0, 0, 0)


def _ignore(*_: object) -> None:
    """A handler instead of SIG_IGN, which child processes would inherit."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
