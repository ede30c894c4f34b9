"""Answers about jobs: records, sweeps, logs, explanations and reports."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from tpuctl.errors import Diagnostic
from tpuctl.model.jobs.sweep import describe_values
from tpuctl.units import clock_time, format_duration
from tpuctl.view.columns import ABSENT, JSON_ONLY, Column, Fields, Number
from tpuctl.view.responses.base import (
    Hours,
    Measurement,
    NullIfEmpty,
    Response,
    Timestamp,
    source,
)
from tpuctl.view.responses.resources import RemainingResource

if TYPE_CHECKING:
    from tpuctl.model.events import JobEnded
    from tpuctl.model.jobs.explanation import Explanation
    from tpuctl.model.jobs.job import JobRecord, JobSummary
    from tpuctl.model.jobs.report import RunReport
    from tpuctl.model.jobs.sweep import SweepValues
    from tpuctl.model.logs.curves import Curve
    from tpuctl.model.status import snapshot, status


class RestartCause(Response):
    kind: str
    name: str
    cause: str
    detail: str


class Attempt(Response):
    """An attempt after the first, and why it was started."""

    number: int
    zone: str = source("placement.zone")
    node: str = source("placement.node")
    cause: RestartCause = source("verdict")
    started: Timestamp
    started_by: str


def _values(row: Fields) -> str:
    return describe_values(row["values"])


def _state(row: Fields) -> str:
    """The state, with the exit code of a job that failed; other states have only one."""
    code = f" ({row['exit_code']})" if row["state"] == "failed" else ""
    return f"{row['state']}{code}".replace("_", " ")


def _age(row: Fields) -> str:
    """The time since the job was submitted, in its largest unit."""
    return " ".join(format_duration(row["age"]).split()[:2])


def _duration(row: Fields) -> str:
    return "" if row["duration"] is None else clock_time(row["duration"])


class Job(Response):
    """A job; `exit_code` is null while it runs. `values` are those of `run --each`."""

    id: Annotated[str, Column("job", is_whole=True)] = source("record.id")
    kind: Literal["script", "module", "shell", "notebook"] = source("record.kind")
    script: Annotated[
        str, Column(show=lambda row: "-m " * (row["kind"] == "module") + row["script"])
    ] = source("record.script")
    args: list[str] = source("record.args")
    values: Annotated[dict[str, str], Column(show=_values)] = source("record.values")
    state: Annotated[str, Column(show=_state, is_whole=True)] = source("status.state")
    exit_code: int | None = source("status.exit_code")
    detail: str = source("status.detail")
    attempt: Annotated[int, Column()] = source("record.attempt")
    attempts: Annotated[list[Attempt], JSON_ONLY]
    retries_left: Annotated[dict[str, int] | None, JSON_ONLY]
    workers: Annotated[list[int], Column(show=lambda row: len(row["workers"]), is_wide=True)] = (
        source("record.workers")
    )
    slices: int = source("record.slices")
    submitted: Annotated[Timestamp, Column("submitted (UTC)", is_wide=True)] = source(
        "record.submitted"
    )
    submitted_by: str = source("record.submitted_by")
    submitted_as: str = source("record.submitted_as")
    finished: Annotated[Timestamp | None, Column("finished (UTC)", is_wide=True)] = source(
        "status.finished"
    )
    output: str = source("record.output")


class ListedJob(Job):
    """A job with what only tables show: times in seconds, and where it was submitted to."""

    age: Annotated[float, Column(show=_age, is_whole=True)]
    duration: Annotated[float | None, Column(show=_duration, is_whole=True)]
    framework: str | None = source("record.framework")
    runtime: str = source("record.runtime")
    node: str = source("record.node")
    zone: str = source("record.zone")

    @classmethod
    def of(cls, job: JobSummary, now: datetime) -> ListedJob:
        submitted = job.record.submitted
        end = now if job.status.exit_code is None else job.status.finished
        duration = None if end is None else max(0.0, (end - submitted).total_seconds())
        age = max(0.0, (now - submitted).total_seconds())
        return cls.from_object(job, age=age, duration=duration)


class Progress(Response):
    """The last values in the log; NaN and infinities are strings. `epoch` is null where the log
    tells the step."""

    step: int | None
    loss: Measurement | None
    tokens_per_second: Measurement | None
    epoch: Measurement | None


class ChipMetrics(Response):
    """A sample of a worker's chips; `absence` says why it has no values."""

    at: Timestamp
    absence: NullIfEmpty[str]
    duty_cycle_percent: list[Measurement]
    hbm_used_bytes: list[int]
    hbm_total_bytes: list[int]


class JobSnapshot(Job):
    """A job with its progress, the time of its last log output, and its workers' states and
    chips."""

    worker_states: dict[str, str]
    chip_metrics: dict[str, ChipMetrics]
    progress: Progress
    last_log_at: Timestamp | None

    @classmethod
    def of(cls, job: snapshot.JobSnapshot) -> JobSnapshot:
        from tpuctl.model.jobs.job import JobSummary

        workers = {str(number): job.workers[number] for number in sorted(job.workers)}
        return cls.from_object(
            JobSummary(job.record, job.status),
            worker_states={number: worker.state for number, worker in workers.items()},
            chip_metrics={
                number: worker.chips
                for number, worker in workers.items()
                if worker.chips is not None and worker.state == "running"
            },
            progress=job.progress,
            last_log_at=job.logged,
        )


class JobSubmission(Response):
    """`job_exit_code` is the job's; the envelope's `exit_code` may be one of tpuctl's."""

    job: str
    output: str
    state: str | None = ABSENT
    job_exit_code: int | None = ABSENT
    remaining: list[RemainingResource] = ABSENT

    @classmethod
    def of(
        cls,
        record: JobRecord,
        ended: JobEnded | None = None,
        down: status.Down | None = None,
    ) -> JobSubmission:
        """A job that was followed, and the result of `down` afterwards."""
        job_exit_code = ended.exit_code if ended is not None and ended.is_job_exit_code else None
        return cls(
            job=record.id,
            output=record.output,
            state=ended.state if ended is not None else None,
            job_exit_code=job_exit_code,
            **({} if down is None else {"remaining": down.remaining}),
        )


class QueuedJobs(Response):
    """The jobs of `run --each` that were appended to the queue."""

    jobs: list[JobSubmission]


class QueueRun(Response):
    """The queued jobs that ended while `jobs run` ran."""

    jobs: int


def _last_values(curves: Sequence[Curve] | None) -> dict[str, float]:
    return {curve.name: curve.all_points[-1][1] for curve in curves or ()}


class SweepJob(Response):
    """A job of `run --each`; those that were not started have no `job`. `metrics` are the last
    values in its log."""

    values: dict[str, str]
    job: str | None = source("record.id")
    state: Annotated[str, BeforeValidator(lambda state: state or "not_started")] = source(
        "explanation.status.state"
    )
    exit_code: int | None = source("explanation.status.exit_code")
    hours: Annotated[
        Hours | None, BeforeValidator(lambda seconds: None if seconds is None else seconds / 3600)
    ] = source("seconds")
    steps: int | None = source("last_step")
    metrics: Annotated[dict[str, float], BeforeValidator(_last_values)] = source("curves")
    cost: Number | None


class Sweep(Response):
    """The jobs of `run --each`, in the order of its values."""

    jobs: list[SweepJob]
    remaining: list[RemainingResource] = ABSENT

    @classmethod
    def of(
        cls,
        sweep: Sequence[SweepValues],
        reports: Sequence[RunReport],
        down: status.Down | None = None,
    ) -> Sweep:
        """The first jobs have a report, the others were not started."""
        return cls(
            jobs=[
                SweepJob.from_object(report, values=values)
                for values, report in zip_longest(sweep, reports)
            ],
            **({} if down is None else {"remaining": down.remaining}),
        )


class ComparisonRow(Response):
    """A property of the compared jobs: its value for each, null if unknown. Durations are in
    seconds."""

    name: str
    values: list[str | int | float | list[str] | None]
    differs: bool


class Comparison(Response):
    jobs: list[str]
    rows: list[ComparisonRow]


class Logs(Response):
    """The job whose log was shown, and its result if it was followed to the end."""

    job: str
    attempt: int = ABSENT
    output: str
    state: str | None = ABSENT
    job_exit_code: int | None = ABSENT
    text: str = ABSENT  # the log, in answers of `tpuctl mcp`


class WebhookTest(Response):
    """A test message that was delivered. `machines_have_access` is that to the URL's secret."""

    format: str
    status: int
    machines_have_access: bool | None


class StoppedJob(Response):
    job: str
    state: str
    exit_code: int | None


class Failure(Response):
    kind: str
    name: str
    cause: str
    hint: str
    worker: int | None
    slice: int | None
    detail: str
    lines: list[str]


class PreviousFailure(Response):
    """Why a previous attempt ended."""

    attempt: Annotated[int, AfterValidator(lambda next_attempt: next_attempt - 1)] = source(
        "number"
    )
    kind: str = source("verdict.kind")
    name: str = source("verdict.name")
    cause: str = source("verdict.cause")
    worker: int | None = source("verdict.worker")
    slice: int | None
    detail: str = source("verdict.detail")
    at: Timestamp = source("verdict.at")


class Hang(Response):
    """A worker's hang; `stack` has the calls of the main thread, the innermost first."""

    detail: str
    stack: list[str]


class JobExplanation(Response):
    """`failure` is null if the job is running or succeeded; `hangs` are by worker."""

    job: str = source("record.id")
    state: str = source("status.state")
    exit_code: int | None = source("status.exit_code")
    attempt: int = source("record.attempt")
    machines_queried: Annotated[bool, BeforeValidator(operator.not_)] = source("is_unqueried")
    failure: Failure | None
    previous_failures: list[PreviousFailure]
    hangs: dict[Annotated[str, BeforeValidator(str)], Hang]

    @classmethod
    def of(cls, explanation: Explanation, as_typed: Callable[[str], str]) -> JobExplanation:
        """`as_typed` turns the commands of a hint into what the user has to type."""
        numbering, failure = explanation.record.numbering, explanation.failure

        def slice_of(worker: int | None) -> int | None:
            return None if worker is None else numbering.slice_of(worker)

        return cls.from_object(
            explanation,
            failure=None
            if failure is None
            else Failure.from_object(
                failure,
                slice=slice_of(failure.worker),
                hint=as_typed(failure.hint),
                lines=explanation.lines,
            ),
            previous_failures=[
                PreviousFailure.from_object(attempt, slice=slice_of(attempt.verdict.worker))
                for attempt in explanation.attempts
            ],
        )


class MessageExplanation(Response):
    """What an error message means."""

    name: str
    kind: str
    summary: str
    explanation: str = source("cause")
    hint: str
    fault: Annotated[str, BeforeValidator(lambda fault: fault or "")]
    line: str


class CommandExplanation(Response):
    """Why the last `up`, `run` or `down` failed; `meaning` is null if its error is unknown."""

    command: list[str] = source("arguments")
    started: Timestamp
    exit_code: int
    errors: list[Diagnostic] = source("diagnostics")
    meaning: MessageExplanation | None


class AttemptReport(Response):
    number: int = source("record.attempt")
    zone: str = source("record.zone")
    started: Timestamp
    ended: Timestamp | None
    cost: float | None
    restart_reason: str | None = source("restart.verdict.name")


class ForecastOutcome(Response):
    """A range that `plan --forecast` gave (seconds, or US dollars), and what it was in the end."""

    name: Literal["wait", "preemptions", "duration", "cost"]
    low: float
    high: float
    actual: float
    is_within: bool


class JobReport(Response):
    """`curves` are lists of [position, value] by name, and `curve_units` what their positions
    count: "step"; where the log tells none, "epoch", or "line" of those with metrics. `python` is
    the version that the job brings, null for the image's. `file` is the HTML report, if
    written."""

    job: str = source("record.id")
    state: str = source("explanation.status.state")
    exit_code: int | None = source("explanation.status.exit_code")
    submitted_by: str = source("record.submitted_by")
    submitted_as: str = source("record.submitted_as")
    cost: Number | None
    attempts: list[AttemptReport]
    curves: Annotated[
        dict[str, list[tuple[int | float, float]]],
        BeforeValidator(lambda curves: {curve.name: curve.all_points for curve in curves}),
    ]
    curve_units: Annotated[
        dict[str, str],
        BeforeValidator(lambda curves: {curve.name: curve.unit for curve in curves}),
    ] = source("curves")
    forecast: list[ForecastOutcome] = source("outcomes")
    bundle: str = source("record.bundle")
    python: str | None = source("record.python")
    file: Path = ABSENT
    markdown: str = ABSENT
