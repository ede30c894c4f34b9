"""The forecast of a hunt, from a trace and from earlier requests."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.job_records import job_record
from tpuctl.capacity_trace import ZoneTrace
from tpuctl.model.capacity.capacity_history import CapacityAttempt
from tpuctl.model.capacity.forecast import (
    Forecast,
    Range,
    checkpoint_interval,
    forecast,
    past_waits,
)
from tpuctl.model.capacity.forecast_outcome import outcome_of
from tpuctl.model.capacity.hunt import Hunt
from tpuctl.model.jobs.attempt import Attempt, Placement, Verdict
from tpuctl.model.jobs.explanation import Explanation
from tpuctl.model.jobs.job import JobStatus
from tpuctl.model.jobs.report import AttemptReport, ForecastOutcome, RunReport
from tpuctl.view.jobs.report import page
from tpuctl.view.jobs.run import print_run

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
HOUR = 3600.0


def attempt(hours: float, error: str = "", *, seconds: float = 600.0) -> CapacityAttempt:
    time = NOON + timedelta(hours=hours)
    return CapacityAttempt(time, "us-central1-a", "v2-8", "spot", seconds, error)


def test_range_leaves_out_a_tenth_at_each_end() -> None:
    assert Range.of(range(101)) == Range(10, 90)
    assert Range.of([7.0]) == Range(7.0, 7.0)
    assert Range.of([]) is None
    assert 10 in Range(10, 90)
    assert 91 not in Range(10, 90)


def test_past_waits_begin_with_the_first_refusal() -> None:
    attempts = [
        attempt(0, "No capacity"),
        attempt(1, "No capacity"),
        attempt(2),
        attempt(3),
        attempt(10, "No capacity"),
        attempt(40),  # another hunt
    ]
    assert [wait for _, wait in past_waits(attempts)] == [2 * HOUR + 600, 600, 600]


@pytest.mark.parametrize(
    ("save", "mean_run", "interval"),
    [
        # By hand: sqrt(2 * 60 * 14400) = 1314.5, times 1 + 0.04564 / 3 + 0.002083 / 9, minus 60.
        (60.0, 4 * HOUR, 1274.8),
        (60.0, 30.0, 30.0),  # longer than any run
    ],
)
def test_checkpoint_interval(save: float, mean_run: float, interval: float) -> None:
    assert checkpoint_interval(save, mean_run) == pytest.approx(interval, abs=0.1)


def test_steady_room_is_used_at_once() -> None:
    hunt = Hunt([ZoneTrace("a", "v2-8", (0.0,), (1,))], setup=300.0)
    expected = forecast(NOON, 10, [], hunt, 100 * HOUR, per_hour={"a": 2.0})
    assert (expected.starts, expected.unfinished) == (200, 0)
    assert expected.wait == Range(300, 300)
    assert expected.preemptions == Range(0, 0)
    assert expected.duration == Range(10 * HOUR + 300, 10 * HOUR + 300)
    assert expected.cost == Range(20, 20)
    assert expected.checkpoint is None


def test_preempted_work_takes_longer() -> None:
    """Five hours with room, one without: ten hours of work take two or three runs."""
    times = tuple(time * HOUR for hour in range(0, 600, 6) for time in (hour, hour + 5))
    hunt = Hunt([ZoneTrace("a", "v2-8", times, (1, 0) * 100)])
    expected = forecast(NOON, 10, [], hunt, 600 * HOUR, per_hour={"a": 1.0})
    assert expected.unfinished < 5  # the last starts
    assert expected.preemptions == Range(2, 2)
    assert expected.duration is not None
    assert 11 * HOUR < expected.duration.low <= expected.duration.high < 14 * HOUR
    assert expected.cost is not None
    assert 10 < expected.cost.low <= expected.cost.high < 12
    assert expected.checkpoint is not None
    on_demand = forecast(NOON, 10, [], hunt, 600 * HOUR, is_spot=False)
    assert on_demand.preemptions == Range(0, 0)
    assert on_demand.cost is None


def test_work_beyond_the_trace_is_counted() -> None:
    hunt = Hunt([ZoneTrace("a", "v2-8", (0.0, HOUR), (1, 0))])
    expected = forecast(NOON, 10, [attempt(0)], hunt, 20 * HOUR)
    assert expected.unfinished == expected.starts
    assert (expected.duration, expected.preemptions) == (None, None)
    assert (expected.grants, expected.past_wait) == (1, Range(600, 600))


def run_report(submitted: datetime, status: JobStatus) -> RunReport:
    """A job of two attempts, of four and six hours, between which it was preempted."""
    verdict = Verdict(kind="preemption", name="preempted", cause="preempted", at=submitted)
    placement = Placement(zone="us-central1-a", node="bert-tpu")
    restart = Attempt(number=2, placement=placement, verdict=verdict, started=submitted)
    record = job_record(submitted=submitted)
    begin = submitted + timedelta(hours=1)
    middle, end = (begin + timedelta(hours=hours) for hours in (5, 11))
    attempts = (
        AttemptReport(record, {}, None, begin, begin + timedelta(hours=4), 2.0),
        AttemptReport(record, {}, restart, middle, end, 2.0),
    )
    explanation = Explanation(record, status, None, attempts=(restart,))
    return RunReport(explanation, "v2-8", "tf", attempts, (), end)


def test_outcome_says_what_was_within_the_range() -> None:
    expected = Forecast(
        NOON,
        10,
        wait=Range(600, 7200),
        preemptions=Range(2, 4),
        duration=Range(10 * HOUR, 14 * HOUR),
        cost=Range(15, 20),
    )
    attempts = [attempt(-2), attempt(0.5, "No capacity"), attempt(1)]
    ended = run_report(NOON + timedelta(hours=1), JobStatus("succeeded", 0))
    outcomes = outcome_of(expected, ended, attempts)
    assert [(outcome.name, outcome.actual, outcome.is_within) for outcome in outcomes] == [
        ("wait", 2400, True),  # from the first request, which took ten minutes
        ("preemptions", 1, False),
        ("duration", 11 * HOUR + 2400, True),
        ("cost", 20, True),
    ]
    running = run_report(NOON, JobStatus("running"))
    assert [outcome.name for outcome in outcome_of(expected, running, attempts)] == ["wait"]
    earlier = run_report(NOON - timedelta(hours=1), JobStatus("succeeded", 0))
    assert outcome_of(expected, earlier, attempts) == ()


def test_outcome_is_shown_by_jobs_and_in_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = (
        ForecastOutcome("wait", 600, 7200, 2400),
        ForecastOutcome("preemptions", 2, 4, 1),
        ForecastOutcome("cost", 15, 15, 20),
    )
    ended = run_report(NOON, JobStatus("succeeded", 0))
    report = replace(ended, forecast_hours=10, outcomes=outcomes)
    print_run(report)
    output = capsys.readouterr().out
    for line in (
        r"forecast for 10 h +range +was",
        r"wait for a TPU +10 min to 2 h +40 min *\n",
        r"preemptions +2 to 4 +1 \(outside\)",
        r"cost +\$15.00 +\$20.00 \(outside\)",
    ):
        assert re.search(line, output), line
    assert "<td>preemptions</td><td>2 to 4</td><td>1 (outside)</td>" in page(report)
    assert "Forecast" not in page(ended)
