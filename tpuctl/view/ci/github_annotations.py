"""Findings and a run's result as workflow commands of GitHub Actions.

GitHub shows findings next to the changed lines, and all of them on the workflow run's page.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tpuctl.model.jobs.report import RunReport
from tpuctl.model.text.terminal_text import without_control_characters
from tpuctl.preflight.findings import Report, Severity
from tpuctl.preflight.rules import RULES
from tpuctl.view.ci.file_locations import relative_to
from tpuctl.view.stack.cost import run_cost

LEVELS = {Severity.error: "error", Severity.cost: "warning", Severity.risk: "notice"}
DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
PROPERTY = {**DATA, ":": "%3A", ",": "%2C"}


def annotation_lines(report: Report, base: Path) -> Iterator[str]:
    """A command for each finding; paths below `base` are relative to it."""
    for finding in report.findings:
        rule = RULES.get(finding.code)
        title = f"{finding.code} {rule.name}" if rule is not None else finding.code
        text = f"{finding.message}\n{finding.hint}".strip()
        where = {"line": finding.line, "col": finding.column + 1, "title": title}
        yield _command(LEVELS[finding.severity], relative_to(base, finding.path), where, text)
    for note in report.notes:
        yield _command("notice", relative_to(base, note.path), {"line": note.line}, note.message)


def run_annotation(report: RunReport) -> str:
    """One command: an error with the reason of the failure, or a notice with the state."""
    status, failure = report.explanation.status, report.explanation.failure
    code = f" with exit code {status.exit_code}" if status.exit_code else ""
    title = f"TPU job {report.record.id}: {status.state.replace('_', ' ')}{code}"
    if failure is None:
        cost = "" if report.cost is None else f", {run_cost(report)}"
        return _annotation("notice", {"title": title}, f"{report.record.command}{cost}")
    parts = [failure.cause, failure.detail if failure.detail != failure.cause else "", failure.hint]
    return _annotation("error", {"title": title}, "\n".join(filter(None, parts)))


def _command(level: str, path: str, where: dict[str, object], text: str) -> str:
    return _annotation(level, {"file": path, **where}, text)


def _annotation(level: str, properties: dict[str, object], text: str) -> str:
    pairs = ",".join(
        f"{name}={_escaped(str(value), PROPERTY)}" for name, value in properties.items()
    )
    return f"::{level} {pairs}::{_escaped(text, DATA)}"


def _escaped(text: str, table: dict[str, str]) -> str:
    return "".join(table.get(letter, letter) for letter in without_control_characters(text))
