"""The precision and recall of the check over programs with compiler verdicts."""

from __future__ import annotations

import pytest

from tests.benchmarks.check_truth import (
    Count,
    ProgramResult,
    alarms,
    check_programs,
    check_truth,
    exact,
    severities,
)

PRECISION, RECALL = 0.95, 0.9


@pytest.fixture(scope="module")
def programs() -> list[ProgramResult]:
    return check_programs()


def test_precision_meets_threshold(programs: list[ProgramResult]) -> None:
    count = alarms(programs)
    assert count.precision >= PRECISION, sorted(count.wrong)


def test_recall_meets_threshold(programs: list[ProgramResult]) -> None:
    count = alarms(programs)
    assert count.recall >= RECALL, sorted(count.missed)


def test_severities_match_compiler(programs: list[ProgramResult]) -> None:
    count = severities(programs)
    assert count.recall >= RECALL, sorted(count.missed)


def test_rules_and_lines_match_labels(programs: list[ProgramResult]) -> None:
    count = exact(programs)
    assert count.precision >= RECALL, sorted(count.wrong)
    assert count.recall >= RECALL, sorted(count.missed)


def test_report_names_wrong_programs() -> None:
    rows = list(check_truth())
    assert {"≥ 0.95: met", "≥ 0.9: met"} <= {row.goal for row in rows}
    for row in rows:
        assert 0 <= float(row.value) <= 1
        assert (float(row.value) == 1) == (not row.comparison), row


@pytest.mark.parametrize(
    ("expected", "result", "precision", "recall"),
    [
        ("abcd", "abcd", 1, 1),
        ("abcd", "ab", 1, 0.5),
        ("ab", "abcd", 0.5, 1),
        ("ab", "cd", 0, 0),
        ("", "a", 0, 1),
        ("a", "", 1, 0),
    ],
)
def test_counts(expected: str, result: str, precision: float, recall: float) -> None:
    count = Count.of(expected, result)
    assert (count.precision, count.recall) == (precision, recall)
