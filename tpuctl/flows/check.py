"""`check`: find what would fail on a TPU in a script before it is uploaded."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import Diagnostic, Refused, TpuctlError
from tpuctl.model.events import Emit, WarningIssued
from tpuctl.model.job import JobKind, as_argument
from tpuctl.model.stack import Stack
from tpuctl.preflight.analysis.source import Upload
from tpuctl.preflight.check import check_program, target_of
from tpuctl.preflight.findings import Report, UnreadRequirements
from tpuctl.preflight.submit_gate import (
    Runnable,
    display_path,
    require_no_errors,
    runnable,
    warning_for,
)

if TYPE_CHECKING:
    from tpuctl.jobs.file_selection import Exclusion

__all__ = ["check", "find_left_out", "refuse_errors", "upload_of"]


def check(stack: Stack, script: str | Path, form: JobKind, folder: Path | None) -> Report:
    """Check a script or module statically for the stack's TPU. Runs no code."""
    stack.require_valid()
    program = runnable(str(script), form, folder)
    return check_program(program, target_of(stack), partial(upload_of, stack))


def refuse_errors(stack: Stack, program: Runnable, emit: Emit) -> Report:
    """Raise Refused for errors; emit a summary of the other findings."""
    if program.form == "shell" and program.file is not None:
        _require_upload(stack, program.folder, program.file)
    report = check_program(program, target_of(stack), partial(upload_of, stack))
    require_no_errors(report)
    for note in report.notes:
        if isinstance(note, UnreadRequirements):
            detail = f"{display_path(note.path)}: {note.message}"
            hint = (
                "Name a file that is read, for example:\n    job: {requirements: requirements.txt}"
            )
            emit(WarningIssued(Diagnostic("Dependencies are not installed", detail, hint)))
    file = as_argument(str(program.file))
    words = ["-m", program.program] if program.form == "module" else [file]
    warning = warning_for(report, f"tpuctl check {shlex.join(words)}")
    if warning is not None:
        emit(WarningIssued(warning))
    return report


def _require_upload(stack: Stack, folder: Path, program: Path) -> None:
    """Raise Refused if the program of a command is not uploaded."""
    exclusion = upload_of(stack, folder, program).exclusion_of(program.absolute())
    if exclusion is not None:
        raise Refused(
            "Program is excluded from the upload",
            f"{program}: {exclusion.rule}",
            hint=exclusion.remedy,
        )


def upload_of(stack: Stack | None, folder: Path, script: Path | None) -> Upload:
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

    return Upload(rules.exclusion_of, _modules_around(rules.root), lfs_pointers)


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
