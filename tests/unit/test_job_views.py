"""The list of jobs, and the attempts of one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.job_records import job_record
from tpuctl.model.jobs.attempt import Attempt, Placement, Verdict
from tpuctl.model.jobs.explanation import Explanation
from tpuctl.model.jobs.failures import Failure
from tpuctl.model.jobs.job import JobRecord, JobStatus, JobSummary
from tpuctl.model.jobs.report import AttemptReport, RunReport
from tpuctl.view.ci.summary import markdown
from tpuctl.view.jobs import report as html
from tpuctl.view.jobs.job import show_jobs
from tpuctl.view.jobs.run import print_run
from tpuctl.view.responses.jobs import ListedJob
from tpuctl.view.terminal import tables
from tpuctl.view.terminal.safe_console import SafeConsole

NOON = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)
PREEMPTED, OUT_OF_MEMORY = "Google preempted the node.", "The program needs more memory."


def record(word: str = "sequoia", script: str = "train.py") -> JobRecord:
    return job_record(id=f"20260304-120000-{word}", script=script)


def second_attempt() -> Attempt:
    verdict = Verdict(kind="preemption", name="preempted", cause=PREEMPTED, at=NOON)
    placement = Placement(zone="us-central1-c", node="n")
    return Attempt(number=2, placement=placement, verdict=verdict, started=NOON)


def show(jobs: Sequence[JobSummary], now: datetime) -> None:
    show_jobs([dict(ListedJob.of(job, now)) for job in jobs])


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns without colors."""
    monkeypatch.setattr(tables, "console", lambda **_: SafeConsole(highlight=False, width=80))


@pytest.mark.usefixtures("terminal")
def test_jobs_fit_80_columns_with_whole_ids(capsys: pytest.CaptureFixture[str]) -> None:
    long = record("thistle2", "experiments/pretraining/train_language_model_large.py")
    retried = record().of(second_attempt())
    jobs = [
        JobSummary(long, JobStatus("failed", 139, finished=NOON + timedelta(hours=5, minutes=59))),
        JobSummary(
            retried, JobStatus("timed_out", 124, finished=NOON + timedelta(days=2, hours=9))
        ),
        JobSummary(record("fern"), JobStatus("running")),
    ]
    show(jobs, NOON + timedelta(days=12, hours=23))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["job", "script", "state", "attempt", "age", "duration"]
    first = next(line for line in lines if line.startswith(long.id))
    assert "failed (139)" in first
    assert first.split()[-3:] == ["12", "d", "5:59:00"]
    second = next(line for line in lines if line.startswith(retried.id))
    assert second.split()[2:] == ["timed", "out", "2", "12", "d", "57:00:00"]
    assert any(line.startswith("20260304-120000-fern ") for line in lines)


@pytest.mark.usefixtures("terminal")
def test_jobs_without_a_second_attempt_have_no_such_column(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([JobSummary(record(), JobStatus("submitted"))], NOON + timedelta(seconds=3))
    header, _, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["job", "script", "state", "age", "duration"]
    assert row.split() == ["20260304-120000-sequoia", "train.py", "submitted", "3", "s", "3.0", "s"]


def test_duration_of_a_job_whose_end_is_unknown_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([JobSummary(record(), JobStatus("lost", 69))], NOON + timedelta(hours=3))
    assert capsys.readouterr().out.splitlines()[-1].split()[-2:] == ["3", "h"]


def test_each_attempt_shows_its_own_end(capsys: pytest.CaptureFixture[str]) -> None:
    restart = second_attempt()
    first, second = record(), record().of(restart)
    failure = Failure("failure", "memory", OUT_OF_MEMORY)
    report = RunReport(
        Explanation(second, JobStatus("failed", 1), failure, attempts=(restart,)),
        "v2-8",
        "tf",
        (
            AttemptReport(first, {}, None, NOON, NOON + timedelta(hours=1), 2.0),
            AttemptReport(second, {}, restart, NOON, NOON + timedelta(hours=1), 2.0),
        ),
        (),
        NOON,
    )
    print_run(report)
    rows = [line for line in capsys.readouterr().out.splitlines() if line[:2] in ("1 ", "2 ")]
    assert [PREEMPTED in row for row in rows] == [True, False]
    assert [OUT_OF_MEMORY in row for row in rows] == [False, True]
    rows = [line for line in markdown(report).splitlines() if line[:4] in ("| 1 ", "| 2 ")]
    assert [r"Google preempted" in row for row in rows] == [True, False]
    assert [OUT_OF_MEMORY in row for row in rows] == [False, True]
    rows = [line for line in html.render_attempts(report) if line.startswith("<tr><td>")]
    assert [PREEMPTED in row for row in rows] == [True, False]
    assert [OUT_OF_MEMORY in row for row in rows] == [False, True]
