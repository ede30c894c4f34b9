"""The parent of a job: starts it once, waits for it, kills leftover processes, writes its exit.

Like `supervisor.py`, which starts it, this file is sent to workers as it is and runs there as
`python3 -S -I job_parent.py FOLDER CWD ARGV...`: standard library only, Python 3.8 and later. It
does so little that it survives what may kill a supervisor. `job.lock` is held while it lives;
`started.json` says that the job was started, and prevents another start; `exit.json` contains its
exit status and the offset of its output in the log. SIGUSR2 sends SIGTERM to every process of the
job, SIGUSR1 kills them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from tpuctl.jobs.shipped.machine.clock import now
    from tpuctl.jobs.shipped.machine.folder import Folder
    from tpuctl.jobs.shipped.machine.processes import descendants, signal_all, stop
else:
    from clock import now
    from folder import Folder
    from processes import descendants, signal_all, stop

LEFTOVER_GRACE = 5.0  # seconds between SIGTERM and SIGKILL for leftover processes of a script
SHUTDOWN = 10.0  # seconds in which a machine that shuts down sends SIGTERM to all processes
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <sys/prctl.h>


class Terminations:
    """Sends SIGTERM to each process of the job at most once.

    A machine that shuts down sends SIGTERM to all processes, including the job, whose handler may
    be saving: a second signal could damage what it saves.
    """

    def __init__(self) -> None:
        self.terminated_at = -SHUTDOWN  # when this process was sent SIGTERM

    def record(self, *_: object) -> None:
        self.terminated_at = time.monotonic()

    def forward(self, *_: object) -> None:
        if time.monotonic() - self.terminated_at >= SHUTDOWN:
            signal_all(descendants(os.getpid()), signal.SIGTERM)


def main(arguments: list[str]) -> int:
    folder, cwd, argv = Folder(arguments[0]), arguments[1], arguments[2:]
    if folder.lock("job.lock", timeout=1.0) is None:
        return 1
    started = folder.read("started.json")  # read under the lock: only one of two parents continues
    if started is not None and "job_parent" in started:
        return 1
    # Handlers, not SIG_IGN: that would be inherited by the job.
    terminations = Terminations()
    signal.signal(signal.SIGTERM, terminations.record)
    signal.signal(signal.SIGUSR2, terminations.forward)
    signal.signal(signal.SIGUSR1, kill)
    # The job inherits this, as under nohup: logind sends SIGHUP with SIGTERM to what is left of a
    # session, and a script that is saving its state must survive it. A program that uses SIGHUP,
    # such as to reload its configuration, sets a handler and receives it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        # Orphans become children of this process, so that none escapes.
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    folder.write("started.json", {"job_parent": None})
    log = os.open(folder.file("log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    log_offset = os.fstat(log).st_size
    try:
        job = start(argv, cwd, log)
    except OSError as error:
        os.write(log, f"tpuctl: cannot start {argv[0]}: {error.strerror}\n".encode())
        ended = {"exit_code": 126 if isinstance(error, PermissionError) else 127, "signal": None}
    else:
        folder.write("started.json", {"job_parent": os.getpid()})
        status = wait_for(job)
        is_signal = os.WIFSIGNALED(status)
        ended = {
            "exit_code": None if is_signal else os.WEXITSTATUS(status),
            "signal": os.WTERMSIG(status) if is_signal else None,
        }
    finished = now()
    stop(leftovers, LEFTOVER_GRACE)
    folder.write("exit.json", {**ended, "finished": finished, "log_offset": log_offset})
    return 0


def start(argv: list[str], cwd: str, log: int) -> int:
    """Start the script with its output to `log`, in a session of its own; returns its PID.

    Not with `subprocess`, which takes a while to load.
    """
    os.chdir(cwd)
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    return os.posix_spawnp(
        argv[0], argv, os.environ, file_actions=files, setsid=True, setsigdef=IGNORED_BY_PYTHON
    )


def kill(*_: object) -> None:
    signal_all(descendants(os.getpid()), signal.SIGKILL)


def wait_for(job: int) -> int:
    """The job's wait status; other children, adopted ones, are only reaped."""
    while True:
        pid, status = os.wait()
        if pid == job:
            return status


def leftovers() -> list[int]:
    """Processes that the script left running, which could hold the accelerator or the log."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return list(descendants(os.getpid()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
