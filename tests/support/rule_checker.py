"""Findings of selected rules in the source of a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tpuctl.preflight.analysis.program.source import Project, load
from tpuctl.preflight.findings import Finding, Target
from tpuctl.preflight.rules import FINDERS, codes_for


def findings_of(project: Project, target: Target, *codes: str) -> Iterator[Finding]:
    """The findings in a project by rules with this code prefix that may apply to it."""
    for code in codes_for(project, target):
        if code.startswith(codes):
            yield from FINDERS[code](project, target)


class RuleChecker:
    """Checks sources in one folder with the rules of a code prefix, such as "TPU1"."""

    def __init__(self, folder: Path, *codes: str) -> None:
        self.folder, self.codes = folder, codes

    def findings(self, source: str, target: Target, files: dict[str, str]) -> list[Finding]:
        """All findings in `train.py` and the other files, sorted by location."""
        script = self.folder / "train.py"
        script.write_text(source, "utf-8")
        for name, text in files.items():
            (self.folder / name).write_text(text, "utf-8")
        project = load(script)
        assert not project.unreadable, project.unreadable
        findings = findings_of(project, target, *self.codes)
        return sorted(
            findings, key=lambda finding: (str(finding.path), finding.line, finding.column)
        )

    def assert_marked(self, source: str, target: Target, **files: str) -> None:
        """Assert that findings match the comments `# CODE severity` in the source exactly."""
        reported = [
            (finding.path.name, finding.line, f"{finding.code} {finding.severity.value}")
            for finding in self.findings(source, target, files)
        ]
        expected = [
            (name, number, line.partition("# ")[2])
            for name, text in sorted({"train.py": source, **files}.items())
            for number, line in enumerate(text.split("\n"), 1)
            if "# TPU" in line
        ]
        assert sorted(reported) == sorted(expected)

    def apply_fixes(self, source: str, target: Target) -> str:
        """The source with the edits of all findings applied, from the last to the first."""
        lines = source.split("\n")
        edits = [edit for finding in self.findings(source, target, {}) for edit in finding.edits]
        for edit in sorted(edits, key=lambda edit: (edit.line, edit.column), reverse=True):
            rest = lines[edit.end_line - 1][edit.end_column :]
            lines[edit.line - 1 : edit.end_line] = [
                lines[edit.line - 1][: edit.column] + edit.text + rest
            ]
        return "\n".join(lines)
