"""Findings as GitLab's merge requests show them: its code quality report.

The format: GitLab's documentation, Code Quality, "Code Quality report format".
"""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from tpuctl.preflight.findings import Report, Severity
from tpuctl.view.checks.source_lines import Sources
from tpuctl.view.ci.file_locations import relative_to

LEVELS = {Severity.error: "major", Severity.cost: "minor", Severity.risk: "info"}


def code_quality(report: Report, base: Path) -> list[dict[str, Any]]:
    """One entry per finding; paths are relative to `base`. A finding keeps its fingerprint when
    lines above it are added or removed."""
    sources = Sources()
    seen: Counter[str] = Counter()
    entries = []
    for finding in report.findings:
        path = relative_to(base, finding.path)
        line = (sources.line(finding.path, finding.line) or "").strip()
        same = f"{finding.code}:{path}:{line}"
        seen[same] += 1
        printed = hashlib.sha256(f"{same}:{seen[same]}".encode("utf-8", "surrogateescape"))
        entries.append(
            {
                "description": f"{finding.message} {finding.hint}".strip(),
                "check_name": finding.code,
                "fingerprint": printed.hexdigest(),
                "severity": LEVELS[finding.severity],
                "location": {"path": path, "lines": {"begin": max(1, finding.line)}},
            }
        )
    return entries
