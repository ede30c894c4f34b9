"""Findings of the static check and their parts: rules, edits, targets and reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from tpuctl.model.scripts.framework import Framework


class Severity(StrEnum):
    """The consequence on a TPU, most severe first."""

    error = "error"  # does not compile or run
    cost = "cost"  # runs, but uses more time or memory than necessary
    risk = "risk"  # may fail, or was not written for a TPU


@dataclass(frozen=True)
class Target:
    """The machine and software that the script is checked for."""

    kind: Literal["vm", "node"] = "vm"
    tensorflow: str | None = None  # the runtime's version; None if it has none or it is unknown
    replicas: int | None = None  # the number of replicas; None if unknown
    workers: int | None = None  # the number of machines; None if unknown
    generation: str = ""  # of the TPU, such as "v5e"; empty if unknown
    image: str = ""  # the runtime, or the image of Compute Engine; empty if unknown
    python: str = "3.10"  # of the job: the image's, or the one it brings, at least
    pythons: tuple[str, ...] = ()  # if it brings one: those that it may be
    asked_by: str = ""  # what asks for that Python, such as `pyproject.toml:4`
    requirements: str | None = None  # job.requirements; None for the usual ones
    installs_more: bool = False  # the job also installs packages by a command or extras
    environment: tuple[tuple[str, str], ...] = ()  # job.env
    framework: Framework | None = None  # of the stack's jobs; None if nothing tells

    @cached_property
    def version(self) -> tuple[int, ...] | None:
        """The runtime's TensorFlow as numbers, such as (2, 18, 0)."""
        if self.tensorflow is None:
            return None
        return tuple(int(part) for part in self.tensorflow.split(".") if part.isdigit())

    @property
    def brings_python(self) -> bool:
        """Whether the job brings its Python, which does not see the image's packages."""
        return bool(self.pythons)

    @property
    def python_text(self) -> str:
        """Which Python the job is checked for, as the second half of a sentence."""
        if not self.brings_python:
            return f"the image has Python {self.python}"
        verb = "runs" if len(self.pythons) == 1 else "may run"
        return f"the job {verb} on Python {self.python} ({self.asked_by})"

    def has_newer_python_than(self, version: tuple[int, int]) -> bool:
        """Whether the job's Python is newer, and so may run syntax that this version cannot
        parse."""
        return python_version(self.python) > version


def python_version(minor: str) -> tuple[int, ...]:
    """A minor version as numbers: (3, 12) for "3.12"."""
    return tuple(int(part) for part in minor.split("."))


class Edit(NamedTuple):
    """A range of a file and its replacement.

    Lines count from 1, columns from 0 in characters; `ast` counts bytes, which `Module.column`
    converts.
    """

    path: Path
    line: int
    column: int
    end_line: int
    end_column: int
    text: str


@dataclass(frozen=True)
class Finding:
    """A violation of a rule at a location."""

    code: str
    severity: Severity
    path: Path
    line: int
    column: int  # from 0, in characters
    message: str  # one line that names the code concerned
    hint: str = ""  # what to write instead
    edits: tuple[Edit, ...] = ()  # the safe fix, if any; applied together or not at all


class Rule(NamedTuple):
    """The documentation of a rule. `bad` and `good` are complete programs if possible."""

    code: str
    name: str  # words with hyphens
    severity: Severity
    summary: str  # one line
    rationale: str  # sentences
    bad: str  # Python
    good: str  # Python
    target: Target = Target()  # to which `bad` applies


@dataclass(frozen=True)
class CheckNote:
    """A note about the check itself that is not a finding."""

    path: Path
    line: int
    message: str


@dataclass(frozen=True)
class UnreadRequirements(CheckNote):
    """A note that a file with dependencies is not installed."""


@dataclass(frozen=True)
class Report:
    """The findings by file and line, without suppressed ones."""

    findings: tuple[Finding, ...]
    files: tuple[Path, ...]  # the checked files
    suppressed: int = 0
    notes: tuple[CheckNote, ...] = ()
    framework: Framework | None = None  # of all scripts, if their imports tell

    @classmethod
    def merge(cls, reports: Iterable[Report]) -> Report:
        """Merge the reports of several scripts, without duplicate findings.

        What is an error in one of them is not also reported as the risk that it is in others,
        whose message says more.
        """
        merged = list(reports)
        findings = {finding for part in merged for finding in part.findings}
        errors: dict[tuple[str, int, int, str], list[str]] = {}
        for finding in findings:
            if finding.severity is Severity.error:
                errors.setdefault(_sort_key(finding)[:4], []).append(finding.message)
        findings = {
            finding
            for finding in findings
            if finding.severity is Severity.error
            or not finding.message.startswith(tuple(errors.get(_sort_key(finding)[:4], ())))
        }
        frameworks = {part.framework for part in merged}
        return cls(
            tuple(sorted(findings, key=_sort_key)),
            tuple(dict.fromkeys(path for part in merged for path in part.files)),
            sum(part.suppressed for part in merged),
            tuple(dict.fromkeys(note for part in merged for note in part.notes)),
            frameworks.pop() if len(frameworks) == 1 else None,
        )

    def only(self, codes: Collection[str]) -> Report:
        """A copy with only the findings of these codes."""
        return replace(
            self, findings=tuple(finding for finding in self.findings if finding.code in codes)
        )

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.error)


def _sort_key(finding: Finding) -> tuple[str, int, int, str, str]:
    return str(finding.path), finding.line, finding.column, finding.code, finding.message
