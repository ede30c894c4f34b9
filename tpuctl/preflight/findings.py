"""What the static check finds, and in what it is written down."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

__all__ = ["Edit", "Finding", "Remark", "Report", "Rule", "Severity", "Target"]


class Severity(StrEnum):
    """How bad it is on a TPU; what is worse comes first."""

    error = "error"  # will not compile, or not run
    cost = "cost"  # runs, and takes more time or memory than it needs to
    risk = "risk"  # may go wrong, or was not meant for a TPU


@dataclass(frozen=True)
class Target:
    """What the script is checked for."""

    kind: Literal["vm", "node"] = "vm"
    tensorflow: str | None = None  # the runtime's version; None if it has none or it is unknown
    replicas: int | None = None  # the number of replicas; None if unknown

    @property
    def version(self) -> tuple[int, ...] | None:
        """The runtime's TensorFlow as numbers, such as (2, 18, 0)."""
        if self.tensorflow is None:
            return None
        return tuple(int(part) for part in self.tensorflow.split(".") if part.isdigit())


@dataclass(frozen=True)
class Edit:
    """A piece of a file and what comes into its place.

    Lines count from 1, columns from 0 in characters, as an editor and Python's `str` have them;
    `ast` counts bytes: `Module.column` converts.
    """

    path: Path
    line: int
    column: int
    end_line: int
    end_column: int
    text: str


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, at its place."""

    code: str
    severity: Severity
    path: Path
    line: int
    column: int  # from 0, in characters
    message: str  # one line: what is wrong here, with the names of the things
    hint: str = ""  # what to write instead
    edits: tuple[Edit, ...] = ()  # the safe rewrite, if there is one: all of them or none

    def with_severity(self, severity: Severity) -> Finding:
        """The same with another severity."""
        return replace(self, severity=severity)


@dataclass(frozen=True)
class Rule:
    """What the pages say of a code. `bad` and `good` are whole programs where they can be."""

    code: str
    name: str  # some words with hyphens, as linters name rules
    severity: Severity
    summary: str  # one line
    rationale: str  # sentences
    bad: str  # Python
    good: str  # Python
    target: Target = field(default_factory=Target)  # for which `bad` is bad


@dataclass(frozen=True)
class Remark:
    """Something about the checking itself that is to be said, and is no finding."""

    path: Path
    line: int
    text: str


@dataclass(frozen=True)
class Report:
    """All that was found, by file and line, without what the source silences."""

    findings: tuple[Finding, ...]
    files: tuple[Path, ...]  # that were looked at
    silenced: int = 0
    remarks: tuple[Remark, ...] = ()

    @classmethod
    def merge(cls, reports: Iterable[Report]) -> Report:
        """Of several scripts, each finding once."""
        merged = list(reports)
        return cls(
            tuple(sorted({finding for each in merged for finding in each.findings}, key=_place)),
            tuple(dict.fromkeys(path for each in merged for path in each.files)),
            sum(each.silenced for each in merged),
            tuple(dict.fromkeys(remark for each in merged for remark in each.remarks)),
        )

    def only(self, codes: Collection[str]) -> Report:
        """With the findings of these codes alone."""
        return replace(
            self, findings=tuple(finding for finding in self.findings if finding.code in codes)
        )

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.error)

    def as_dict(self) -> dict[str, Any]:
        """As the envelope of `--json` has it."""
        return {
            "files": [str(path) for path in self.files],
            "findings": [
                {
                    "code": finding.code,
                    "severity": finding.severity.value,
                    "file": str(finding.path),
                    "line": finding.line,
                    "column": finding.column + 1,
                    "message": finding.message,
                    "hint": finding.hint,
                    "fixable": bool(finding.edits),
                }
                for finding in self.findings
            ],
            "suppressed": self.silenced,
            "remarks": [
                {"file": str(remark.path), "line": remark.line, "text": remark.text}
                for remark in self.remarks
            ],
        }


def _place(finding: Finding) -> tuple[str, int, int, str, str]:
    return str(finding.path), finding.line, finding.column, finding.code, finding.message
