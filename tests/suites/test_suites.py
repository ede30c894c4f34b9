"""The board of others' suites: how reports are counted, and the quick suites themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.suites.run import OURS, Outcome, Suite, outcome_of, page, run, suites

REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="passes"/>
<testcase classname="tests.test_a" name="fails"><failure message="501">E</failure></testcase>
<testcase classname="tests.test_a" name="ends"/>
<testcase classname="tests.test_a" name="ends"><error message="at its end">E</error></testcase>
<testcase classname="tests.test_a" name="waits"><skipped message="why"/></testcase>
</testsuite></testsuites>"""
QUICK = [suite for suite in suites() if suite.quick]


def test_each_test_is_counted_once(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    outcome = outcome_of(report)
    assert (outcome.passed, outcome.skipped) == (1, 1)
    names = [failure.partition(": ")[0] for failure in outcome.failures]
    assert names == ["test_a::fails", "test_a::ends"]


def test_board_gives_the_reason_or_the_name() -> None:
    suite = suites()[0]
    pattern, reason = next(iter(suite.reasons.items()))
    failures = ["test_x::a: error of ours", f"test_x::b: {pattern.replace(chr(92), '')}"]
    outcomes = {each.name: Outcome(5, 0, []) for each in suites()}
    outcomes[suite.name] = Outcome(5, 1, failures[:1])
    text = page(outcomes, datetime(2026, 11, 29, tzinfo=UTC))
    assert f"| {suite.title} | {suite.package.replace('==', ' ')} | 5 | 1 | 1 |" in text
    assert f"| 1 | {OURS}: `test_x::a` |" in text
    assert reason not in text


@pytest.mark.soak
@pytest.mark.malformed  # some of their calls are, on purpose or not
@pytest.mark.parametrize("suite", QUICK, ids=lambda suite: suite.name)
def test_quick_suite_fails_nowhere_without_a_reason(suite: Suite, tmp_path: Path) -> None:
    outcome = run(suite, tmp_path)
    assert [each for each in outcome.failures if suite.reason(each) == OURS] == []
    assert outcome.passed >= suite.at_least
