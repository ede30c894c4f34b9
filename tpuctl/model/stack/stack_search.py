"""Finds the stack file of a folder: in it, or in one above it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

from tpuctl.errors import Diagnostic

STACK_FILE = "tpuctl.yaml"


def find_stack_file(folder: Path, warn: Callable[[Diagnostic], None] = lambda _: None) -> Path:
    """The nearest `tpuctl.yaml` in the folder or above it; in the folder itself if there is none.

    Searches up to the top of the folder's git repository, the user's home, or the file system's
    root. A file above that another user owns is not used, and reported to `warn`: it decides what
    runs on machines, and for whose money.
    """
    for above in _folders_above(folder):
        path = above / STACK_FILE
        if not path.is_file():
            continue
        stranger = _stranger(path, folder)
        if stranger is None:
            return path
        warn(
            Diagnostic(
                "Stack file of another user ignored",
                f"{path} belongs to {stranger}",
                hint=f"If you trust it, name it: --stack-file {path}",
            )
        )
        break
    return folder / STACK_FILE


def _folders_above(folder: Path) -> Iterator[Path]:
    """The folders to search after this one; none if it has a stack file, of whatever kind."""
    # Path.home() fails for a user without one, as in containers.
    folder_here, home = folder.resolve(), Path(os.path.expanduser("~")).resolve()  # noqa: PTH111
    if os.path.lexists(folder_here / STACK_FILE):
        return
    while folder_here not in (home, folder_here.parent) and not (folder_here / ".git").exists():
        folder_here = folder_here.parent
        yield folder_here


def _stranger(path: Path, folder: Path) -> str | None:
    """The owner of the file, or of a link to it, if that is neither this user, nor root, nor the
    owner of the folder, who decides what is in it anyway."""
    trusted = {os.getuid(), 0, folder.stat().st_uid}
    for owner in (path.lstat().st_uid, path.stat().st_uid):
        if owner not in trusted:
            try:
                return pwd.getpwuid(owner).pw_name
            except KeyError:
                return f"user {owner}"
    return None
