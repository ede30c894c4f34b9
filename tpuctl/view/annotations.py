"""Findings as workflow commands of GitHub Actions, which shows them beside the changed lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tpuctl.preflight.findings import Report, Severity
from tpuctl.preflight.rules import RULES
from tpuctl.view.places import relative_to

__all__ = ["annotation_lines"]

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


def _command(level: str, path: str, where: dict[str, object], text: str) -> str:
    properties = {"file": path, **where}
    told = ",".join(f"{name}={_escaped(str(one), PROPERTY)}" for name, one in properties.items())
    return f"::{level} {told}::{_escaped(text, DATA)}"


def _escaped(text: str, table: dict[str, str]) -> str:
    return "".join(table.get(one, one) for one in text)
