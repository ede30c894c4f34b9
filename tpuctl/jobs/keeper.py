"""The parent of a job: starts it once, waits for it, ends what it left, writes how it ended.

Like `supervisor.py`, which starts it, this file is sent to workers as it is and runs there as
`python3 -S -I keeper.py FOLDER CWD ARGV...`: standard library only, Python 3.8 and later. It does
so little that it survives what may kill a supervisor. `job.lock` is held while it lives;
`begun.json` says that the job was started, never to be started again; `exit.json` says how it
ended. SIGTERM is passed on to every process of the job, SIGUSR1 kills them all.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["main"]

LEFTOVERS = 5.0  # seconds between SIGTERM and SIGKILL for what an ended script left running
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <sys/prctl.h>


def main(arguments: list[str]) -> int:
    folder, cwd, argv = arguments[0], arguments[1], arguments[2:]
    begun = os.path.join(folder, "begun.json")
    if not take(os.path.join(folder, "job.lock")) or os.path.exists(begun):
        return 1
    # Handlers, not SIG_IGN: that would be inherited by the job.
    signal.signal(signal.SIGTERM, lambda *_: signal_all(signal.SIGTERM))
    signal.signal(signal.SIGUSR1, lambda *_: signal_all(signal.SIGKILL))
    signal.signal(signal.SIGHUP, lambda *_: None)
    with contextlib.suppress(OSError, AttributeError):
        # Orphans become children of the keeper, so that none escapes.
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    write(begun, {"keeper": None})
    log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
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
        write(begun, {"keeper": os.getpid()})
        status = wait_for(job.pid)
        is_signal = os.WIFSIGNALED(status)
        ended = {
            "exit_code": None if is_signal else os.WEXITSTATUS(status),
            "signal": os.WTERMSIG(status) if is_signal else None,
        }
    finished = datetime.datetime.now(datetime.timezone.utc).isoformat()
    end_leftovers()
    write(os.path.join(folder, "exit.json"), {**ended, "finished": finished})
    return 0


def take(path: str) -> bool:
    """Hold a lock for the rest of this process; patient with those who only look."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(50):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.02)
        else:
            return True
    return False


def write(path: str, value: dict[str, Any]) -> None:
    """Write a file whole or not at all."""
    with open(path + ".part", "w", encoding="utf-8") as target:
        json.dump(value, target)
        target.flush()
        os.fsync(target.fileno())
    os.replace(path + ".part", path)


def wait_for(job: int) -> int:
    """The job's wait status; other children, adopted ones, are only reaped."""
    while True:
        pid, status = os.wait()
        if pid == job:
            return status


def end_leftovers() -> None:
    """End what the script left running, so that nothing holds the accelerator or the log."""
    deadline = time.monotonic() + LEFTOVERS
    number = signal.SIGTERM
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not list(descendants(os.getpid())):
            return
        signal_all(number)
        if time.monotonic() >= deadline:
            number = signal.SIGKILL
        time.sleep(0.05)


def signal_all(number: int) -> None:
    """Signal every process of the job, whatever session it moved to."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def descendants(root: int) -> Iterator[int]:
    """Everything below a process that still runs, from the system's process table."""
    children: dict[int, list[int]] = {}
    for pid, parent in processes():
        children.setdefault(parent, []).append(pid)
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            waiting.append(pid)
            yield pid


def processes() -> Iterator[tuple[int, int]]:
    """Process and parent of all that runs."""
    if not os.path.isdir("/proc/self"):
        table = subprocess.check_output(["ps", "-axo", "pid=,ppid=,stat="]).decode()
        for line in table.splitlines():
            process, parent, state = line.split()
            if not state.startswith("Z"):
                yield int(process), int(parent)
        return
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(name)
            with open(f"/proc/{pid}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()
            if fields[0] not in (b"Z", b"X"):
                yield pid, int(fields[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
