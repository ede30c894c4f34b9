"""Reads the stacks of a job's Python processes, which `stack_handler.py` lets them write.

Like `supervisor.py`, which imports it, this file is sent to workers as it is: standard library
only, Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from tpuctl.jobs.shipped.machine.folder import Folder
    from tpuctl.jobs.shipped.machine.processes import descendants
    from tpuctl.jobs.shipped.tracing.stack_handler import NAME, SIGNAL
else:
    from processes import descendants
    from stack_handler import NAME, SIGNAL

MAX_PROCESSES = 8  # the first ones; data loaders may have many
MAX_BYTES = 1 << 16  # of one process's stacks
WRITE_SECONDS = 2.0  # in which a process writes its stacks, unless it is stopped
POLL_SECONDS = 0.02


class Stack:
    """What the threads of a process do, the main thread first; the innermost calls first."""

    def __init__(self, pid: int, text: str) -> None:
        self.pid = pid
        self.command = command_line(pid)
        self.threads = text.split("\n\n")[::-1]

    @property
    def text(self) -> str:
        title = f"stack of process {self.pid} ({self.command}), the innermost call first:"
        return "\n".join([title, *self.threads])

    @property
    def calls(self) -> list[str]:
        """The calls of the main thread."""
        return [line.strip() for line in self.threads[0].splitlines()[1:]]


def handler_folder(folder: Folder) -> str:
    """A folder for PYTHONPATH, with the handler alone."""
    path = folder.file("python")
    os.makedirs(path, exist_ok=True)
    handler = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stack_handler.py")
    shutil.copyfile(handler, os.path.join(path, "sitecustomize.py"))
    return path


def read_stacks(root: int) -> list[Stack]:
    """The stacks of the descendants of a process, as far as they are Python's and answer."""
    stacks: list[Stack] = []
    for pid in sorted(descendants(root)):
        path = stacks_file(pid)
        if path is None or len(stacks) == MAX_PROCESSES:
            continue
        with contextlib.suppress(OSError):  # it may end meanwhile
            text = read_stack(pid, path)
            if text:
                stacks.append(Stack(pid, text))
    return stacks


def stacks_file(pid: int, number: int = SIGNAL, *, of_itself: bool = False) -> str | None:
    """The file to which a process writes its stacks; None if signal `number` could end it.

    Forked processes share their parent's, except `of_itself`.
    """
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            caught = [line.split()[1] for line in status if line.startswith("SigCgt:")]
        if caught and int(caught[0], 16) >> (number - 1) & 1:
            prefix = f"/memfd:{NAME}-{pid} " if of_itself else f"/memfd:{NAME}-"
            folder = f"/proc/{pid}/fd"
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if os.readlink(path).startswith(prefix):
                    return path
    return None


def read_stack(pid: int, path: str) -> str:
    """What the process writes now; empty if it does not."""
    with open(path, "rb") as file:
        size = begin = os.fstat(file.fileno()).st_size
        os.kill(pid, SIGNAL)
        deadline = time.monotonic() + WRITE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            last, size = size, os.fstat(file.fileno()).st_size
            if begin < last == size:
                break
        file.seek(begin)
        return file.read(MAX_BYTES).decode("utf-8", "replace").strip()


def command_line(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read(1000).rstrip(b"\0").split(b"\0")
    return b" ".join(words).decode("utf-8", "replace").split("\n")[0][:100]
