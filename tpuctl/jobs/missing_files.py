"""Finds out which rule left out the file that a job did not find."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from tpuctl.jobs.file_selection import Exclusion, FileRules

MODULE = re.compile(r"No module named '([\w.]+)'")
NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
WORD = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"|([^\s'\"`;:,()\[\]{}]+)")
MAX_WORDS = 200
SOURCES = ("", "src")  # folders of packages, as on workers


def missing_file(
    message: str, rules: FileRules, job_folder: str = "", around: Sequence[Path] = ()
) -> tuple[Path, Exclusion] | None:
    """The file of this computer that an error message says is missing, and why it was left out.

    None if the message names no such file. `job_folder` is the folder in which the job ran, and
    `around` has further folders of modules on this computer.
    """
    for path in _candidates(message, rules.root, job_folder, around):
        try:
            exclusion = rules.exclusion_of(path) if path.exists() else None
        except (OSError, ValueError):  # the word is not a path
            continue
        if exclusion is not None:
            return path, exclusion
    return None


def _candidates(
    message: str, root: Path, job_folder: str, around: Sequence[Path]
) -> Iterator[Path]:
    modules = [match[1] for match in MODULE.finditer(message)]
    modules += [f"{match[2]}.{match[1]}" for match in NAME.finditer(message)]
    for module in modules:
        parts = module.split(".")
        for folder in (*(root / source for source in SOURCES), *around):
            for count in range(len(parts), 0, -1):
                path = folder.joinpath(*parts[:count])
                yield from (path.with_name(f"{path.name}.py"), path / "__init__.py")
    for match, _ in zip(WORD.finditer(message), range(MAX_WORDS), strict=False):
        word = match[1] or match[2] or match[3]
        if job_folder and word.startswith(f"{job_folder}/"):
            word = word.removeprefix(f"{job_folder}/")
        path = root / PurePosixPath(word.rstrip("."))
        if word not in ("", ".", "..", "/") and path != root:
            yield path
