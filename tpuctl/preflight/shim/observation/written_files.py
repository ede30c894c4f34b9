"""Observes local files that a script writes, which a machine loses."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from typing import Any

from .context import Rehearsal

MAX_PATHS = 200
WRITING = os.O_WRONLY | os.O_RDWR
# Folders of caches and of other programs' files.
IGNORED_PARTS = ("site-packages", "dist-packages", "__pycache__", ".cache", ".tpuctl")
SYSTEM_FOLDERS = ("/dev/", "/proc/", "/sys/")


def install(rehearsal: Rehearsal) -> None:
    """Record each file that Python opens for writing, once, but not temporary ones."""
    temporary = os.path.join(os.path.realpath(tempfile.gettempdir()), "")
    observations = os.path.dirname(os.path.realpath(rehearsal.settings.observations))
    ignored_folders = (*SYSTEM_FOLDERS, observations)
    root = rehearsal.user_lines.root
    recorded: set[str] = set()
    state = threading.local()

    def is_ignored(path: str) -> bool:
        if path.startswith(ignored_folders):
            return True
        if any(part in path.removeprefix(root) for part in IGNORED_PARTS):
            return True
        return path.startswith(temporary) and not path.startswith(root)

    def record(path: Any, flags: Any) -> None:
        if not isinstance(path, (str, bytes)) or not isinstance(flags, int) or not flags & WRITING:
            return
        real = os.path.realpath(os.fsdecode(path))
        if real in recorded or len(recorded) >= MAX_PATHS or is_ignored(real):
            return
        recorded.add(real)
        rehearsal.writer.write("wrote", path=real)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or rehearsal.writer.is_forked() or getattr(state, "is_busy", False):
            return
        state.is_busy = True
        try:
            rehearsal.writer.attempt("files", record, arguments[0], arguments[2])
        finally:
            state.is_busy = False

    sys.addaudithook(audit)
