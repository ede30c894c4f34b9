"""Removal of folders with unpredictable permissions."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


def remove_folder(folder: Path) -> None:
    """Remove a folder tree; what cannot be removed stays, and nothing is raised.

    Programs may leave folders that even their owner cannot write to: those are made writable
    first. Symbolic links are removed, not followed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.is_dir():
        return
    _make_writable(folder)
    for top, names, _ in os.walk(folder):  # top-down: a folder is made writable before it is listed
        for name in names:
            _make_writable(Path(top) / name)
    shutil.rmtree(folder, ignore_errors=True)


def _make_writable(folder: Path) -> None:
    if not folder.is_symlink():
        with contextlib.suppress(OSError):
            folder.chmod(0o700)
