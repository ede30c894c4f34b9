"""How often `tpuctl check` agrees with the real compiler."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Figure, goal, sized
from tpuctl.preflight.check import check_project
from tpuctl.preflight.findings import Finding, Severity, Target

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
COMPILED = ("TPU0", "TPU1", "TPU2")  # rules about what the compiler does
MAX_PROGRAMS = sized(None, 3)  # up to this many programs of each list
RUNTIME = "2.18.0"  # what the corpus is compiled with


@dataclass(frozen=True)
class Count:
    """Expected and reported findings."""

    right: frozenset[str]
    missed: frozenset[str]
    wrong: frozenset[str]

    @classmethod
    def of(cls, expected: Iterable[str], reported: Iterable[str]) -> Count:
        expected_set, reported_set = frozenset(expected), frozenset(reported)
        return cls(
            expected_set & reported_set, expected_set - reported_set, reported_set - expected_set
        )

    @property
    def precision(self) -> float:
        """The share of reported findings that are correct; 1 without any."""
        reported = len(self.right) + len(self.wrong)
        return len(self.right) / reported if reported else 1.0

    @property
    def recall(self) -> float:
        """The share of expected findings that were reported; 1 without any."""
        there = len(self.right) + len(self.missed)
        return len(self.right) / there if there else 1.0


@dataclass(frozen=True)
class ProgramResult:
    """A program, the compiler's verdict, and the check's worst severity and findings."""

    file: str
    verdict: str
    result: str
    labels: frozenset[str]
    places: frozenset[str]


def check_programs() -> list[ProgramResult]:
    """Check all programs that have a compiler verdict."""
    labels = {row["file"]: row["codes"] for row in read(CORPUS / "labels.toml")}
    return [
        check_program(row["file"], row["verdict"], labels[row["file"]])
        for row in read(CORPUS / "verdicts.toml")[:MAX_PROGRAMS]
    ]


def check_program(file: str, verdict: str, labels: list[str]) -> ProgramResult:
    program = CORPUS / "programs" / file
    report = check_project(program, Target(tensorflow=RUNTIME))
    findings = [finding for finding in report.findings if finding.code.startswith(COMPILED)]
    order = list(Severity)
    worst = min((finding.severity for finding in findings), key=order.index, default="good")
    places = {f"{file}:{finding.code}:{place(finding, program)}" for finding in findings}
    expected = {f"{file}:{label}" for label in labels}
    return ProgramResult(file, verdict, str(worst), frozenset(expected), frozenset(places))


def place(finding: Finding, program: Path) -> str:
    """Return the line as labels state it, prefixed with the file's name if it is another file."""
    if finding.path == program:
        return str(finding.line)
    return f"{finding.path.relative_to(program.parent).as_posix()}:{finding.line}"


def alarms(programs: list[ProgramResult]) -> Count:
    """Which programs get warnings, against those that are rejected, run slowly or lose checks."""
    return Count.of(
        (program.file for program in programs if program.verdict != "good"),
        (program.file for program in programs if program.result != "good"),
    )


def severities(programs: list[ProgramResult]) -> Count:
    """Which programs get the compiler's own verdict; all others count as missed."""
    same = {program.file for program in programs if program.result == program.verdict}
    return Count.of((program.file for program in programs), same)


def exact(programs: list[ProgramResult]) -> Count:
    """Which codes are reported on which lines, against the labels."""
    return Count.of(
        (place for program in programs for place in program.labels),
        (place for program in programs for place in program.places),
    )


def check_truth() -> Iterator[Figure]:
    """Return the lines of the report."""
    programs = check_programs()
    good = sum(program.verdict == "good" for program in programs)
    label = f"check against XLA, {len(programs)} programs, {good} of them good"
    yield from shares(label, alarms(programs), precision=0.95, recall=0.9)
    same = severities(programs)
    yield Figure("check: as bad as the compiler says", f"{same.recall:.3f}", missed(same))
    yield from shares("check: rule and line, against labels", exact(programs))


def shares(
    label: str, count: Count, precision: float | None = None, recall: float | None = None
) -> Iterator[Figure]:
    rows: list[tuple[str, float, float | None, Callable[[Count], str]]] = [
        ("precision", count.precision, precision, lambda count: listed("wrong", count.wrong)),
        ("recall", count.recall, recall, lambda count: listed("missed", count.missed)),
    ]
    for name, value, limit, details in rows:
        yield Figure(
            f"{label}: {name}",
            f"{value:.3f}",
            details(count),
            goal(f"≥ {limit}", value >= limit) if limit else "",
        )


def missed(count: Count) -> str:
    return listed("not", count.missed)


def listed(word: str, names: Iterable[str]) -> str:
    """Return a few of the names, and how many more there are."""
    ordered = sorted(names)
    if not ordered:
        return ""
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return f"{word}: {', '.join(ordered[:3])}{more}"


def read(path: Path) -> list[dict[str, Any]]:
    return list(tomllib.loads(path.read_text("utf-8")).get("program", []))
