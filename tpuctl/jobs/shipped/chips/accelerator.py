"""Frees a worker's chips from leftovers of earlier jobs, before a script starts.

Like `supervisor.py`, which forks it, this file is sent to workers as it is and also runs as
`python3 -S -I accelerator.py FOLDER`: standard library only, Python 3.8 and later. Leftover
processes of jobs are stopped, and unused lock files removed; both are reported in the job's log.
It fails, naming them, if other processes hold a chip beyond a timeout. In FOLDER's `spec.json`,
`accelerator` may override the paths of devices and lock files, and the timeout.
`accelerator.py look FILE...` prints the processes that have these files open.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import re
import subprocess
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tpuctl.jobs.shipped.chips.chips import device_files, lock_files
    from tpuctl.jobs.shipped.machine.folder import Folder, wait_for_lock
    from tpuctl.jobs.shipped.machine.processes import FOLDER, environment, processes, stop
else:
    from chips import device_files, lock_files
    from folder import Folder, wait_for_lock
    from processes import FOLDER, environment, processes, stop

TIMEOUT = 10.0  # seconds that other processes have to exit
GRACE = 10.0  # seconds between SIGTERM and SIGKILL for leftover processes


class Holder:
    """A process that has a chip's device file open."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.folder = environment(pid).get(FOLDER)  # of the attempt that it belongs to

    def is_left_over(self) -> bool:
        """Whether it belongs to a job that has ended."""
        if self.folder is None or not os.path.isdir(self.folder):
            return False
        return not Folder(self.folder).is_locked("job.lock")

    def __str__(self) -> str:
        job = f", job {os.path.basename(os.path.dirname(self.folder))}" if self.folder else ""
        return f"process {self.pid} ({command(self.pid)}) of user {owner(self.pid)}{job}"


def command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return " ".join(file.read().replace(b"\0", b" ").decode(errors="replace").split())[:120]
    except OSError:
        return "?"


def owner(pid: int) -> str:
    try:
        number = os.stat(f"/proc/{pid}").st_uid
        return pwd.getpwuid(number).pw_name
    except OSError:
        return "?"
    except KeyError:
        return str(number)


def holders(paths: list[str]) -> list[int]:
    """The visible processes that have one of these files open."""
    if not paths:
        return []
    if can_use_root():
        argv = [sys.executable, "-S", "-I", os.path.abspath(__file__), "look", *paths]
        result = subprocess.run(["sudo", "-n", *argv], stdout=subprocess.PIPE, check=True)
        return [int(pid) for pid in result.stdout.split()]
    return list(scan_holders(paths))


def scan_holders(paths: list[str]) -> Iterator[int]:
    targets = set(paths)
    for pid, _ in processes():
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{name}") in targets:
                        yield pid
                        break


def is_held(path: str) -> bool:
    """Whether a running process, of any user, has a lock file open or locked."""
    if holders([path]):
        return True
    with contextlib.suppress(OSError):
        status = os.stat(path)
        inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        with open("/proc/locks", encoding="ascii") as table:
            return any(re.search(rf"\s{inode}\s", line) for line in table)
    return False


@functools.lru_cache(maxsize=None)  # noqa: UP033 - what Python 3.8 has
def can_use_root() -> bool:
    """Whether root, which sees all users' processes, is available without a password."""
    # Not on the local cloud, where root sees no more.
    if os.getuid() == 0 or os.environ.get("GCE_METADATA_HOST", "").startswith("127."):
        return False
    with contextlib.suppress(OSError):
        null = subprocess.DEVNULL
        return not subprocess.call(["sudo", "-n", "true"], stdin=null, stdout=null, stderr=null)
    return False


def remove(path: str) -> bool:
    """Remove a file, as root if necessary; returns whether it is gone."""
    with contextlib.suppress(FileNotFoundError):
        try:
            os.remove(path)
        except PermissionError:
            if can_use_root():
                subprocess.call(["sudo", "-n", "rm", "-f", path], stdin=subprocess.DEVNULL)
    return not os.path.exists(path)


def notebook_of(holder: Holder) -> str | None:
    """The job that the process belongs to, if that serves notebooks."""
    spec = Folder(holder.folder).read("spec.json") if holder.folder else None
    return spec["job"] if spec is not None and spec.get("notebooks") else None


def stop_left_over(left_over: list[Holder], folder: Folder, devices: list[str]) -> None:
    for holder in left_over:
        folder.log(f"{holder} still holds the TPU: stopping it")
    pids = {holder.pid for holder in left_over}
    stop(lambda: pids.intersection(holders(devices)) if pids else (), GRACE)


def free_chips(folder: Folder, spec: dict[str, Any]) -> str:
    """Free the chips; returns "", or an error that names the processes that hold them."""
    # A machine of the local cloud has no devices; there, a program holds the lock alone.
    devices = device_files(spec) or lock_files(spec)
    deadline = time.monotonic() + (spec.get("accelerator") or {}).get("timeout_seconds", TIMEOUT)
    while True:
        current = [Holder(pid) for pid in holders(devices)]
        stop_left_over([holder for holder in current if holder.is_left_over()], folder, devices)
        others = [holder for holder in current if not holder.is_left_over()]
        if not others:
            break
        if time.monotonic() >= deadline:
            for job in filter(None, map(notebook_of, others)):
                return f"the TPU is in use by a kernel of the notebook {job}"
            return "the TPU is already in use by " + ", ".join(map(str, others))
        time.sleep(0.2)
    for path in lock_files(spec):
        if not is_held(path) and remove(path):
            folder.log(f"removed {path}, which no process holds")
    return ""


def main(arguments: list[str]) -> int:
    if arguments[0] == "look":
        print(*scan_holders(arguments[1:]))
        return 0
    folder = Folder(arguments[0])
    spec = folder.read("spec.json")
    assert spec is not None
    # Two jobs that start at the same time would mistake each other for foreign processes.
    wait_for_lock(os.path.expanduser("~/.tpuctl/accelerator.lock"))
    error = free_chips(folder, spec)
    if error:
        print(error)
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
