"""What a report of the check means for a job that is about to be sent."""

from __future__ import annotations

import os
from pathlib import Path

from tpuctl.errors import Diagnostic, Refused
from tpuctl.preflight.findings import Finding, Report, Severity
from tpuctl.preflight.rules import RULES

__all__ = ["counted", "diagnostic_of", "require_no_errors", "shown_path", "warning_of"]

SUMMARY = "Finding of the check"


def require_no_errors(report: Report) -> None:
    """Raise Refused with every error of a report; nothing where there is none."""
    if not report.errors:
        return
    refused = Refused("Script will not run on a TPU")
    code = report.errors[0].code
    last = Diagnostic(
        "Not sent",
        f"{counted(report)} in {len(report.files)} file{'s' * (len(report.files) != 1)}",
        f"Mend it, or end a line that is right with\n    # tpuctl: ignore[{code}]\n"
        "--no-check sends it as it is.",
    )
    refused.diagnostics = (*map(diagnostic_of, report.errors), last)
    raise refused


def warning_of(report: Report, command: str) -> Diagnostic | None:
    """In short what is no error; `command` shows it at length. None where there is nothing."""
    if not report.findings:
        return None
    hint = f"See where, and what to write instead:\n    {command}"
    return Diagnostic("Costs and risks on a TPU", counted(report), hint)


def diagnostic_of(finding: Finding) -> Diagnostic:
    """A finding as any problem is told."""
    rule = RULES.get(finding.code)
    summary = rule.summary.rstrip(".") if rule is not None else SUMMARY
    where = f"{shown_path(finding.path)}:{finding.line}:{finding.column + 1}"
    return Diagnostic(f"{finding.code} {summary}", finding.message, finding.hint, where)


def counted(report: Report) -> str:
    """`2 errors, 1 cost`, without what there is none of."""
    numbers = [(report.counted(severity), severity.value) for severity in Severity]
    return ", ".join(f"{count} {name}{'s' * (count != 1)}" for count, name in numbers if count)


def shown_path(path: Path) -> str:
    """Relative to the current folder, where that is shorter; without what is no text."""
    whole = os.path.abspath(path)  # noqa: PTH100 - links are not followed
    shown = min((os.path.relpath(whole), whole), key=len)
    return shown.encode("utf-8", "backslashreplace").decode()
