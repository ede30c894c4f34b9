"""The parent of a job: starts it once, waits for it, ends what it left, writes how it ended.

Like `supervisor.py`, which starts it, this file is sent to workers as it is and runs there as
`python3 -S -I job_parent.py FOLDER CWD ARGV...`: standard library only, Python 3.8 and later. It
does so little that it survives what may kill a supervisor. `job.lock` is held while it lives;
`begun.json` says that the job was started, never to be started again; `exit.json` says how it
ended, and where in the log its output began. SIGUSR2 passes SIGTERM on to every process of the
job, SIGUSR1 kills them all.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

# What is sent along lies beside this file, and after the standard library: the job's own code is
# in that folder too.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
if TYPE_CHECKING:
    from tpuctl.jobs.shipped.clock import now
    from tpuctl.jobs.shipped.folder import Folder
    from tpuctl.jobs.shipped.processes import descendants, end, signal_all
else:
    from clock import now
    from folder import Folder
    from processes import descendants, end, signal_all

__all__ = ["main"]

LEFTOVERS = 5.0  # seconds between SIGTERM and SIGKILL for what an ended script left running
SHUTDOWN = 10.0  # seconds in which a machine that goes down tells all its processes
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <sys/prctl.h>


class Terminations:
    """Lets each process of the job be told once that it is to end.

    A machine that goes down sends SIGTERM to all that runs, the job included, whose handler may
    be saving: a second one in the middle of it could spoil what it saves.
    """

    def __init__(self) -> None:
        self.own = -SHUTDOWN  # when this process was sent SIGTERM

    def note(self, *_: object) -> None:
        self.own = time.monotonic()

    def pass_on(self, *_: object) -> None:
        if time.monotonic() - self.own >= SHUTDOWN:
            signal_all(descendants(os.getpid()), signal.SIGTERM)


def main(arguments: list[str]) -> int:
    folder, cwd, argv = Folder(arguments[0]), arguments[1], arguments[2:]
    if folder.lock("job.lock", patience=1.0) is None:
        return 1
    begun = folder.read("begun.json")  # looked at under the lock: of two keepers one goes on
    if begun is not None and "keeper" in begun:
        return 1
    # Handlers, not SIG_IGN: that would be inherited by the job.
    terminations = Terminations()
    signal.signal(signal.SIGTERM, terminations.note)
    signal.signal(signal.SIGUSR2, terminations.pass_on)
    signal.signal(signal.SIGUSR1, kill)
    # The job inherits this, as under nohup: logind sends SIGHUP with SIGTERM to what is left of a
    # session, and a script that is saving its state must live through it. A program that wants
    # SIGHUP for something, such as reading its configuration anew, sets a handler and gets it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        # Orphans become children of the keeper, so that none escapes.
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    folder.write("begun.json", {"keeper": None})
    log = os.open(folder.file("log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    log_began = os.fstat(log).st_size
    try:
        job = subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    except OSError as error:
        os.write(log, f"tpuctl: cannot start {argv[0]}: {error.strerror}\n".encode())
        ended = {"exit_code": 126 if isinstance(error, PermissionError) else 127, "signal": None}
    else:
        folder.write("begun.json", {"keeper": os.getpid()})
        status = wait_for(job.pid)
        is_signal = os.WIFSIGNALED(status)
        ended = {
            "exit_code": None if is_signal else os.WEXITSTATUS(status),
            "signal": os.WTERMSIG(status) if is_signal else None,
        }
    finished = now()
    end(leftovers, LEFTOVERS)
    folder.write("exit.json", {**ended, "finished": finished, "log": log_began})
    return 0


def kill(*_: object) -> None:
    signal_all(descendants(os.getpid()), signal.SIGKILL)


def wait_for(job: int) -> int:
    """The job's wait status; other children, adopted ones, are only reaped."""
    while True:
        pid, status = os.wait()
        if pid == job:
            return status


def leftovers() -> list[int]:
    """What the script left running, that nothing may hold the accelerator or the log."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return list(descendants(os.getpid()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
