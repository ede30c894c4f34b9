"""Findings, and how a run ended, as workflow commands of GitHub Actions.

It shows findings beside the changed lines, and all of them on the page of the workflow's run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tpuctl.model.report import RunReport
from tpuctl.preflight.findings import Report, Severity
from tpuctl.preflight.rules import RULES
from tpuctl.view.cost import run_cost
from tpuctl.view.file_locations import relative_to

__all__ = ["annotation_lines", "run_annotation"]

LEVELS = {Severity.error: "error", Severity.cost: "warning", Severity.risk: "notice"}
DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
PROPERTY = {**DATA, ":": "%3A", ",": "%2C"}


def annotation_lines(report: Report, base: Path) -> Iterator[str]:
    """A command for each finding; paths are relative to `base` where they lie below it."""
    for one in report.findings:
        rule = RULES.get(one.code)
        title = f"{one.code} {rule.name}" if rule is not None else one.code
        text = f"{one.message}\n{one.hint}".strip()
        where = {"line": one.line, "col": one.column + 1, "title": title}
        yield _command(LEVELS[one.severity], relative_to(base, one.path), where, text)
    for remark in report.remarks:
        yield _command("notice", relative_to(base, remark.path), {"line": remark.line}, remark.text)


def run_annotation(report: RunReport) -> str:
    """One command: an error that says why the run failed, else a notice of how it stands."""
    status, failure = report.explanation.status, report.explanation.failure
    code = f" with exit code {status.exit_code}" if status.exit_code else ""
    title = f"TPU job {report.record.id}: {status.state.replace('_', ' ')}{code}"
    if failure is None:
        cost = "" if report.cost is None else f", {run_cost(report)}"
        return _told("notice", {"title": title}, f"{report.record.command}{cost}")
    parts = [failure.cause, failure.detail if failure.detail != failure.cause else "", failure.hint]
    return _told("error", {"title": title}, "\n".join(filter(None, parts)))


def _command(level: str, path: str, where: dict[str, object], text: str) -> str:
    return _told(level, {"file": path, **where}, text)


def _told(level: str, properties: dict[str, object], text: str) -> str:
    told = ",".join(f"{name}={_escaped(str(one), PROPERTY)}" for name, one in properties.items())
    return f"::{level} {told}::{_escaped(text, DATA)}"


def _escaped(text: str, table: dict[str, str]) -> str:
    return "".join(table.get(one, one) for one in text)
