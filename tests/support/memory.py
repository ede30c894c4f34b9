"""How much memory a process takes with all that it started, what they share counted once."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["family", "proportional_memory", "resident_memory"]


def family(pid: int) -> list[int]:
    """The process, its children, theirs, and so on."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text("utf-8", "replace")
            except OSError:
                continue  # it ended meanwhile
            parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def proportional_memory(pid: int) -> int:
    """In bytes: of each page that several processes share, each is charged its part."""
    total = 0
    for one in family(pid):
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text("ascii")
        except OSError:
            continue
        found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
        total += int(found[1]) * 1024 if found else 0
    return total


def resident_memory(pid: int) -> int:
    """Of the process alone, in bytes."""
    text = Path(f"/proc/{pid}/status").read_text("ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0
