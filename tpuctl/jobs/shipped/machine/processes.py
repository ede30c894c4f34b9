"""Lists and stops processes of a worker.

Like the programs that import it, this file is sent to workers as it is: standard library only,
Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator

FOLDER = "TPUCTL_FOLDER"  # names the attempt's folder in the environment of all its processes


def descendants(root: int) -> Iterator[int]:
    """The running descendants of a process, in any session."""
    children: dict[int, list[int]] = {}
    for pid, parent in processes():
        children.setdefault(parent, []).append(pid)
    pending = [root]
    while pending:
        for pid in children.get(pending.pop(), ()):
            pending.append(pid)
            yield pid


def processes() -> Iterator[tuple[int, int]]:
    """The PID and parent PID of every running process."""
    if not os.path.isdir("/proc/self"):
        import subprocess  # it takes a while to load

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


def environment(pid: int) -> dict[str, str]:
    """A process's environment variables; none if they are unreadable, like other users'."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = [pair.partition(b"=") for pair in file.read().split(b"\0")]
    except OSError:
        return {}
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name}


def script_python(job_parent: int) -> tuple[str, dict[str, str]]:
    """The Python of the script that the job parent has started, and its environment variables."""
    variables = environment(next(iter(descendants(job_parent)), 0))
    return shutil.which("python", path=variables.get("PATH")) or sys.executable, variables


def of_attempt(folder: str) -> Iterator[int]:
    """Processes that an attempt's script left running, after its job parent has exited."""
    for pid, _ in processes():
        if environment(pid).get(FOLDER) == folder:
            yield pid


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def stop(find: Callable[[], Iterable[int]], grace: float) -> None:
    """Send SIGTERM, then SIGKILL, to what `find` returns, until it returns nothing."""
    deadline = time.monotonic() + grace
    number = signal.SIGTERM
    while True:
        pids = list(find())
        if not pids:
            return
        signal_all(pids, number)
        if time.monotonic() >= deadline:
            number = signal.SIGKILL
        time.sleep(0.05)
