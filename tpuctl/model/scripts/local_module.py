"""Modules of the user's own repository that a job did not find."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from tpuctl.files import is_generated_folder

MISSING = re.compile(r"No module named '([A-Za-z_][\w.]*)'")
MAX_FOLDERS = 2000  # searched in a repository


def find_module(line: str, folder: Path) -> Path | None:
    """The file or package that an error misses, in the folder or its repository."""
    match = MISSING.search(line)
    if match is None:
        return None
    folder = folder.absolute()
    parts = match[1].split(".")
    root = next(
        (parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), folder
    )
    for number, (path, names) in enumerate(_folders(root)):
        if number == MAX_FOLDERS:
            break
        if not names & {parts[0], f"{parts[0]}.py"}:
            continue
        module = path.joinpath(*parts)
        if module.is_dir() and any(module.glob("*.py")):
            return module
        if module.with_name(f"{module.name}.py").is_file():
            return module.with_name(f"{module.name}.py")
    return None


def _folders(root: Path) -> Iterator[tuple[Path, set[str]]]:
    """The folders with the names in them, without virtual environments and hidden folders."""
    for path, folders, files in os.walk(root):
        names = {*folders, *files}
        folders[:] = sorted(name for name in folders if not is_generated_folder(Path(path, name)))
        yield Path(path), names


SUMMARY = "Module of yours not found"


def module_hint(module: Path, folder: Path) -> tuple[str, str]:
    """The cause and the fix, for a module of the repository."""
    name = os.path.relpath(module, folder.absolute())
    included = module.name if name.startswith("..") else name
    return (
        f"There is {name} here, but the job's Python did not find it: it searches the script's "
        "folder, which is uploaded, and its folder src.",
        "Move the module there, or run the script as a module from the folder that contains both:\n"
        "    tpuctl run -m PACKAGE.SCRIPT\n"
        "If .gitignore, .tpuctlignore or job.exclude match it, include it in the stack file:\n"
        f"    job: {{include: [/{included}]}}",
    )
