"""Removing folders that programs wrote as they pleased."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

__all__ = ["remove_folder"]


def remove_folder(folder: Path) -> None:
    """Remove it with all that is in it; what cannot be removed stays, and nothing is raised.

    A program may leave folders behind that not even their owner may write to: those are opened
    first. Links are removed, never followed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.is_dir():
        return
    _open(folder)
    for top, names, _ in os.walk(folder):  # a folder's own are listed after it was opened
        for name in names:
            _open(Path(top) / name)
    shutil.rmtree(folder, ignore_errors=True)


def _open(folder: Path) -> None:
    if not folder.is_symlink():
        with contextlib.suppress(OSError):
            folder.chmod(0o700)
