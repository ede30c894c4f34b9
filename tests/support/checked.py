"""Findings of some rules in a source that is written for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tpuctl.preflight.analysis.source import Project, load
from tpuctl.preflight.findings import Finding, Target
from tpuctl.preflight.rules import FINDERS

__all__ = ["Checked", "findings_of"]


def findings_of(project: Project, target: Target, *codes: str) -> Iterator[Finding]:
    """What the rules whose codes begin so find in a project."""
    for code, find in FINDERS.items():
        if code.startswith(codes):
            yield from find(project, target)


class Checked:
    """Checks sources in one folder by the rules whose codes begin so, such as "TPU1"."""

    def __init__(self, folder: Path, *codes: str) -> None:
        self.folder, self.codes = folder, codes

    def findings(self, source: str, target: Target, files: dict[str, str]) -> list[Finding]:
        """All of them in `train.py` and the other files beside it, by place."""
        script = self.folder / "train.py"
        script.write_text(source, "utf-8")
        for name, text in files.items():
            (self.folder / name).write_text(text, "utf-8")
        project = load(script)
        assert not project.unreadable, project.unreadable
        found = findings_of(project, target, *self.codes)
        return sorted(found, key=lambda one: (str(one.path), one.line, one.column))

    def marked(self, source: str, target: Target, **files: str) -> None:
        """Assert that findings are where the source says `# CODE severity`, and nowhere else."""
        told = [
            (one.path.name, one.line, f"{one.code} {one.severity.value}")
            for one in self.findings(source, target, files)
        ]
        wanted = [
            (name, number, line.partition("# ")[2])
            for name, text in sorted({"train.py": source, **files}.items())
            for number, line in enumerate(text.split("\n"), 1)
            if "# TPU" in line
        ]
        assert sorted(told) == sorted(wanted)

    def fixed(self, source: str, target: Target) -> str:
        """The source with the edits of all findings made, the last first."""
        lines = source.split("\n")
        edits = [edit for one in self.findings(source, target, {}) for edit in one.edits]
        for one in sorted(edits, key=lambda edit: (edit.line, edit.column), reverse=True):
            rest = lines[one.end_line - 1][one.end_column :]
            lines[one.line - 1 : one.end_line] = [
                lines[one.line - 1][: one.column] + one.text + rest
            ]
        return "\n".join(lines)
