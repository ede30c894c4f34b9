"""`check`: find what would fail on a TPU in a script before it is uploaded."""

from __future__ import annotations

import hashlib
import shlex
from contextlib import suppress
from functools import partial
from pathlib import Path

from tpuctl.errors import Diagnostic, Refused
from tpuctl.flows.jobs.rehearsals import content_of, is_new_advice
from tpuctl.jobs.upload_rules import upload_of
from tpuctl.model.events import Emit, WarningIssued
from tpuctl.model.jobs.job import JobKind, as_argument
from tpuctl.model.stack.stack import Stack
from tpuctl.preflight.check import check_program, program_target
from tpuctl.preflight.findings import Report, UnreadRequirements
from tpuctl.preflight.rehearsal.history import Content
from tpuctl.preflight.submit_gate import (
    Runnable,
    display_path,
    require_no_errors,
    runnable,
    warning_for,
)


def check(stack: Stack, script: str | Path, form: JobKind, folder: Path | None) -> Report:
    """Check a script or module statically for the stack's TPU. Runs no code."""
    stack.require_valid()
    program = runnable(str(script), form, folder)
    return check_program(program, program_target(stack, program), partial(upload_of, stack))


def refuse_errors(stack: Stack, program: Runnable, emit: Emit) -> Report:
    """Raise Refused for errors; emit a summary of the other findings."""
    if program.form == "shell" and program.file is not None:
        _require_upload(stack, program.folder, program.file)
    report = check_program(program, program_target(stack, program), partial(upload_of, stack))
    require_no_errors(report)
    for note in report.notes:
        if isinstance(note, UnreadRequirements):
            detail = f"{display_path(note.path)}: {note.message}"
            hint = (
                "Set a file that is read, for example:\n    job: {requirements: requirements.txt}"
            )
            emit(WarningIssued(Diagnostic("Dependencies are not installed", detail, hint)))
    file = as_argument(str(program.file))
    words = ["-m", program.program] if program.form == "module" else [file]
    warning = warning_for(report, f"tpuctl check {shlex.join(words)}")
    if warning is not None and is_new_advice("check", stack, _content(stack, program, report)):
        emit(WarningIssued(warning))
    return report


def _content(stack: Stack, program: Runnable, report: Report) -> Content:
    """What was checked, for advice that is given once for each version of it."""
    digest = hashlib.sha256()
    for file in report.files:
        with suppress(OSError):
            digest.update(file.read_bytes())
    return content_of(stack, digest.hexdigest(), str(program.program))


def _require_upload(stack: Stack, folder: Path, program: Path) -> None:
    """Raise Refused if the program of a command is not uploaded."""
    exclusion = upload_of(stack, folder, program).exclusion_of(program.absolute())
    if exclusion is not None:
        raise Refused(
            "Program is excluded from the upload",
            f"{program}: {exclusion.rule}",
            hint=exclusion.remedy,
        )
