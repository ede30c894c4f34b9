"""Findings as SARIF 2.1.0, which code scanning and editors read.

The format: OASIS, Static Analysis Results Interchange Format, version 2.1.0.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tpuctl.preflight.findings import Edit, Finding, Remark, Report, Severity
from tpuctl.preflight.rules import RULES
from tpuctl.version import __version__
from tpuctl.view.file_locations import uri
from tpuctl.view.rules import rule_markdown, rule_text, sentence
from tpuctl.view.source_lines import Sources

__all__ = ["sarif"]

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {Severity.error: "error", Severity.cost: "warning", Severity.risk: "note"}
FINGERPRINT = "lineHash/v1"
WIDTH = 100  # of the rules' pages as plain text


def sarif(report: Report, base: Path) -> dict[str, Any]:
    """One run, with all rules; files below `base` are told relative to it."""
    codes = list(RULES)
    sources = Sources()
    seen: Counter[str] = Counter()
    results = [
        _result(one, codes, base, _print(one, base, sources, seen)) for one in report.findings
    ]
    remarks = [_notification(one, base) for one in report.remarks]
    run = {
        "tool": {"driver": _driver()},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"uri": _folder_uri(base)}},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": remarks}],
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


def _result(one: Finding, codes: list[str], base: Path, fingerprint: str) -> dict[str, Any]:
    text = f"{one.message}\n{one.hint}".strip()
    made: dict[str, Any] = {
        "ruleId": one.code,
        "level": LEVELS[one.severity],
        "message": {"text": text},
        "locations": [_location(one.path, base, line=one.line, column=one.column)],
        "partialFingerprints": {FINGERPRINT: fingerprint},
    }
    if one.code in codes:
        made["ruleIndex"] = codes.index(one.code)
    if one.edits:
        made["fixes"] = [_fix(one.edits, one.hint or one.message, base)]
    return made


def _location(path: Path, base: Path, *, line: int, column: int | None = None) -> dict[str, Any]:
    region = {"startLine": max(line, 1)}
    if column is not None:
        region["startColumn"] = column + 1
    return {"physicalLocation": {"artifactLocation": _artifact(path, base), "region": region}}


def _artifact(path: Path, base: Path) -> dict[str, str]:
    told = uri(base, path)
    return {"uri": told} if told.startswith("file:") else {"uri": told, "uriBaseId": "SRCROOT"}


def _fix(edits: Iterable[Edit], text: str, base: Path) -> dict[str, Any]:
    by_path: dict[Path, list[Edit]] = {}
    for one in edits:
        by_path.setdefault(one.path, []).append(one)
    changes = [
        {
            "artifactLocation": _artifact(path, base),
            "replacements": [_replacement(one) for one in several],
        }
        for path, several in by_path.items()
    ]
    return {"description": {"text": text}, "artifactChanges": changes}


def _replacement(one: Edit) -> dict[str, Any]:
    region = {
        "startLine": one.line,
        "startColumn": one.column + 1,
        "endLine": one.end_line,
        "endColumn": one.end_column + 1,
    }
    return {"deletedRegion": region, "insertedContent": {"text": one.text}}


def _notification(one: Remark, base: Path) -> dict[str, Any]:
    location = _location(one.path, base, line=one.line)
    return {"level": "note", "message": {"text": one.text}, "locations": [location]}


def _print(one: Finding, base: Path, sources: Sources, seen: Counter[str]) -> str:
    """The same for as long as the line is, wherever in its file it moves."""
    line = (sources.line(one.path, one.line) or "").strip()
    key = "\n".join((one.code, uri(base, one.path), line))
    seen[key] += 1
    return hashlib.sha256(f"{key}\n{seen[key]}".encode("utf-8", "replace")).hexdigest()[:32]
