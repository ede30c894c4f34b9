"""Copies of a job's folder, for installing what it requires without writing into it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

__all__ = ["copy_job_folder"]


def copy_job_folder(
    root: Path, target: Path, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> None:
    """Copy the files that would be uploaded to a new folder."""
    from tpuctl.jobs.file_selection import select_files

    target.mkdir()
    for entry in select_files(root, include, exclude).entries:
        destination = target / entry.name
        if entry.kind == "folder":
            destination.mkdir(parents=True, exist_ok=True)
        elif entry.kind == "file":
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(entry.path, destination)
