"""`check`: find what would fail on a TPU in a script before it is uploaded."""

from __future__ import annotations

import shlex
from pathlib import Path

from tpuctl.errors import Diagnostic
from tpuctl.model.events import Emit, WarningIssued
from tpuctl.model.job import JobKind, as_argument
from tpuctl.model.stack import Stack
from tpuctl.preflight.check import check_program, target_of
from tpuctl.preflight.findings import Report, UnreadRequirements
from tpuctl.preflight.submit_gate import (
    Runnable,
    display_path,
    require_no_errors,
    runnable,
    warning_for,
)

__all__ = ["check", "refuse_errors"]


def check(stack: Stack, script: str | Path, form: JobKind, folder: Path | None) -> Report:
    """Check a script or module statically for the stack's TPU. Runs no code."""
    stack.require_valid()
    return check_program(runnable(str(script), form, folder), target_of(stack))


def refuse_errors(stack: Stack, program: Runnable, emit: Emit) -> Report:
    """Raise Refused for errors; emit a summary of the other findings."""
    report = check_program(program, target_of(stack))
    require_no_errors(report)
    for note in report.notes:
        if isinstance(note, UnreadRequirements):
            detail = f"{display_path(note.path)}: {note.message}"
            emit(WarningIssued(Diagnostic("Dependencies are not installed", detail)))
    file = as_argument(str(program.file))
    words = ["-m", program.program] if program.form == "module" else [file]
    warning = warning_for(report, f"tpuctl check {shlex.join(words)}")
    if warning is not None:
        emit(WarningIssued(warning))
    return report
