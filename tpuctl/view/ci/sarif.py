"""Findings as SARIF 2.1.0, which code scanning and editors read.

The format: OASIS, Static Analysis Results Interchange Format, version 2.1.0.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tpuctl.preflight.findings import CheckNote, Edit, Finding, Report, Severity
from tpuctl.preflight.rules import RULES
from tpuctl.version import __version__
from tpuctl.view.checks.rules import rule_markdown, rule_text, sentence
from tpuctl.view.checks.source_lines import Sources
from tpuctl.view.ci.file_locations import uri

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {Severity.error: "error", Severity.cost: "warning", Severity.risk: "note"}
FINGERPRINT = "lineHash/v1"
WIDTH = 100  # of the rules' pages as plain text


def sarif(report: Report, base: Path) -> dict[str, Any]:
    """One run, with all rules; paths below `base` are relative to it."""
    codes = list(RULES)
    sources = Sources()
    seen: Counter[str] = Counter()
    results = [
        _result(finding, codes, base, _print(finding, base, sources, seen))
        for finding in report.findings
    ]
    notes = [_notification(note, base) for note in report.notes]
    run = {
        "tool": {"driver": _driver()},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"uri": _folder_uri(base)}},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "artifacts": [{"location": _artifact(path, base)} for path in report.files],
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _folder_uri(folder: Path) -> str:
    return f"file:///{uri(Path('/'), folder)}/".replace("///./", "///")


def _driver() -> dict[str, Any]:
    return {
        "name": "tpuctl",
        "semanticVersion": __version__,
        "rules": [
            {
                "id": rule.code,
                "name": "".join(part[:1].upper() + part[1:] for part in rule.name.split("-")),
                "shortDescription": {"text": sentence(rule.summary)},
                "fullDescription": {"text": rule.rationale},
                "help": {"text": rule_text(rule, WIDTH), "markdown": rule_markdown(rule)},
                "defaultConfiguration": {"level": LEVELS[rule.severity]},
                "properties": {"tags": ["tpu", rule.severity.value]},
            }
            for rule in RULES.values()
        ],
    }


def _result(finding: Finding, codes: list[str], base: Path, fingerprint: str) -> dict[str, Any]:
    text = f"{finding.message}\n{finding.hint}".strip()
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "level": LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [_location(finding.path, base, line=finding.line, column=finding.column)],
        "partialFingerprints": {FINGERPRINT: fingerprint},
    }
    if finding.code in codes:
        result["ruleIndex"] = codes.index(finding.code)
    if finding.edits:
        result["fixes"] = [_fix(finding.edits, finding.hint or finding.message, base)]
    return result


def _location(path: Path, base: Path, *, line: int, column: int | None = None) -> dict[str, Any]:
    region = {"startLine": max(line, 1)}
    if column is not None:
        region["startColumn"] = column + 1
    return {"physicalLocation": {"artifactLocation": _artifact(path, base), "region": region}}


def _artifact(path: Path, base: Path) -> dict[str, str]:
    location = uri(base, path)
    return (
        {"uri": location}
        if location.startswith("file:")
        else {"uri": location, "uriBaseId": "SRCROOT"}
    )


def _fix(edits: Iterable[Edit], text: str, base: Path) -> dict[str, Any]:
    by_path: dict[Path, list[Edit]] = {}
    for edit in edits:
        by_path.setdefault(edit.path, []).append(edit)
    changes = [
        {
            "artifactLocation": _artifact(path, base),
            "replacements": [_replacement(edit) for edit in several],
        }
        for path, several in by_path.items()
    ]
    return {"description": {"text": text}, "artifactChanges": changes}


def _replacement(edit: Edit) -> dict[str, Any]:
    region = {
        "startLine": edit.line,
        "startColumn": edit.column + 1,
        "endLine": edit.end_line,
        "endColumn": edit.end_column + 1,
    }
    return {"deletedRegion": region, "insertedContent": {"text": edit.text}}


def _notification(note: CheckNote, base: Path) -> dict[str, Any]:
    location = _location(note.path, base, line=note.line)
    return {"level": "note", "message": {"text": note.message}, "locations": [location]}


def _print(finding: Finding, base: Path, sources: Sources, occurrences: Counter[str]) -> str:
    """A fingerprint that stays the same when the line moves within its file."""
    line = (sources.line(finding.path, finding.line) or "").strip()
    key = "\n".join((finding.code, uri(base, finding.path), line))
    occurrences[key] += 1
    return hashlib.sha256(f"{key}\n{occurrences[key]}".encode("utf-8", "replace")).hexdigest()[:32]
