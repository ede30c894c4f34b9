"""The memory of a process and its descendants, with shared memory counted once."""

from __future__ import annotations

import re
from pathlib import Path


def process_tree(pid: int) -> list[int]:
    """The process and all its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text("utf-8", "replace")
            except OSError:
                continue  # it has ended
            parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
    match = [pid]
    for parent_pid in match:
        match += [child for child, parent in parents.items() if parent == parent_pid]
    return match


def peak_memory(pid: int) -> int:
    """The peak of one process until now, in bytes; 0 of one that has ended but was not waited for.

    Not the value of `wait4`, which includes the parent's memory at the time of the fork.
    """
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text("ascii"))
    return int(match[1]) << 10 if match else 0


def proportional_memory(pid: int, *, of_files: bool = True) -> int:
    """In bytes; each process is charged its share of shared pages.

    The shares of mapped files, such as TensorFlow's libraries, grow when other programs that use
    them end; without `of_files`, they are left out.
    """
    name = "Pss" if of_files else "Pss_Anon"
    total = 0
    for process in process_tree(pid):
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text("ascii")
        except OSError:
            continue
        match = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
        total += int(match[1]) * 1024 if match else 0
    return total
