"""Which files of a job's folder are uploaded, and which rule leaves out the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from tpuctl.jobs.file_selection import Exclusion
    from tpuctl.model.stack.stack import Stack


class FolderUpload(NamedTuple):
    """What a job gets of its folder, as the check asks."""

    exclusion_of: Callable[[Path], Exclusion | None]
    around: tuple[Path, ...]
    lfs_pointers: Callable[[], Sequence[str]]


def upload_of(stack: Stack | None, folder: Path, script: Path | None) -> FolderUpload:
    """What `run` uploads of a folder with a script; without a stack, no setting includes or
    excludes files."""
    from tpuctl.jobs.file_selection import FileRules

    job = stack.file.job if stack is not None else None
    include, exclude = (job.include, job.exclude) if job is not None else ((), ())
    name = os.path.relpath(script, folder) if script is not None else ""
    rules = FileRules(folder, include, exclude, Path(name).as_posix())

    @cache
    def lfs_pointers() -> Sequence[str]:
        try:
            return rules.lfs_pointers()
        except (OSError, TpuctlError):  # `run` reports it
            return ()

    return FolderUpload(cache(rules.exclusion_of), _modules_around(rules.root), lfs_pointers)


def find_left_out(
    message: str, folder: Path, include: Sequence[str], exclude: Sequence[str], script: str = ""
) -> tuple[str, Exclusion] | None:
    """The file that an error message of a job says is missing, if it is on this computer and not
    uploaded: its path relative to the folder, and why."""
    from tpuctl.jobs.file_selection import FileRules
    from tpuctl.jobs.missing_files import missing_file

    rules = FileRules(folder, include, exclude, script)
    missing = missing_file(message, rules, str(rules.root), _modules_around(rules.root))
    if missing is None:
        return None
    path, exclusion = missing
    return os.path.relpath(path, rules.root), exclusion


def _modules_around(folder: Path) -> tuple[Path, ...]:
    """Folders outside of this one in which Python on this computer may find modules: others of the
    repository, and those of PYTHONPATH."""
    from tpuctl.jobs.repository import repository_root

    top = repository_root(folder)
    parents = [path for path in folder.parents if top is not None and path.is_relative_to(top)]
    path = [Path(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return (*parents, *(parent / "src" for parent in parents), *path)
