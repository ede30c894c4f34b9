"""`check`: find what would fail on a TPU in a script before it is uploaded."""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path

from tpuctl.model.events import Emit, WarningIssued
from tpuctl.model.job import JobKind, as_argument
from tpuctl.model.stack import Stack
from tpuctl.preflight.analysis.source import Upload
from tpuctl.preflight.check import check_program, target_of
from tpuctl.preflight.findings import Report
from tpuctl.preflight.submit_gate import Runnable, require_no_errors, runnable, warning_for

__all__ = ["check", "refuse_errors", "upload_of"]


def check(stack: Stack, script: str | Path, form: JobKind, folder: Path | None) -> Report:
    """Check a script or module statically for the stack's TPU. Runs no code."""
    stack.require_valid()
    program = runnable(str(script), form, folder)
    return check_program(program, target_of(stack), partial(upload_of, stack))


def upload_of(stack: Stack | None, folder: Path, script: Path | None) -> Upload:
    """What `run` uploads of a folder with a script; without a stack, no setting includes or
    excludes files."""
    from tpuctl.jobs.file_selection import FileRules
    from tpuctl.jobs.repository import repository_root

    job = stack.file.job if stack is not None else None
    include, exclude = (job.include, job.exclude) if job is not None else ((), ())
    name = os.path.relpath(script, folder) if script is not None else ""
    rules = FileRules(folder, include, exclude, Path(name).as_posix())
    top = repository_root(rules.root)
    parents = [path for path in rules.root.parents if top is not None and path.is_relative_to(top)]
    path = [Path(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    around = (*parents, *(parent / "src" for parent in parents), *path)
    return Upload(rules.exclusion_of, around)


def refuse_errors(stack: Stack, program: Runnable, emit: Emit) -> Report:
    """Raise Refused for errors; emit a summary of the other findings."""
    report = check_program(program, target_of(stack), partial(upload_of, stack))
    require_no_errors(report)
    file = as_argument(str(program.file))
    words = ["-m", program.program] if program.form == "module" else [file]
    warning = warning_for(report, f"tpuctl check {shlex.join(words)}")
    if warning is not None:
        emit(WarningIssued(warning))
    return report
