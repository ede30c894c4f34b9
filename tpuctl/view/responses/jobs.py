"""Answers about jobs and the machines that run them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from tpuctl.view.responses.base import ABSENT, Measurement, Number, Response, Timestamp, source
from tpuctl.view.responses.stacks import RemainingResource

if TYPE_CHECKING:
    from tpuctl.model import snapshot, status
    from tpuctl.model.events import JobEnded
    from tpuctl.model.explanation import Explanation
    from tpuctl.model.job import JobRecord
    from tpuctl.model.pasted_error import Pasted
    from tpuctl.model.report import RunReport

__all__ = [
    "CommandResult",
    "CopyResult",
    "Job",
    "JobExplanation",
    "JobReport",
    "JobSnapshot",
    "JobSubmission",
    "Logs",
    "MessageExplanation",
    "PortForwardings",
    "StoppedJob",
]


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


class Job(Response):
    """A job; `exit_code` is null while it runs."""

    id: str = source("record.id")
    kind: Literal["script", "module", "shell"] = source("record.kind")
    script: str = source("record.script")
    args: list[str] = source("record.args")
    state: str = source("status.state")
    exit_code: int | None = source("status.exit_code")
    detail: str = source("status.detail")
    attempt: int = source("record.attempt")
    attempts: list[Attempt]
    retries_left: dict[str, int] | None
    workers: list[int] = source("record.workers")
    submitted: Timestamp = source("record.submitted")
    submitted_by: str = source("record.submitted_by")
    finished: Timestamp | None = source("status.finished")
    output: str = source("record.output")


class Progress(Response):
    """The last values in the log; NaN and infinities are strings."""

    step: int | None
    loss: Measurement | None
    tokens_per_second: Measurement | None


class JobSnapshot(Job):
    """A job with its workers' states, its progress and the time of its last log output."""

    worker_states: dict[str, str]
    progress: Progress
    last_log_at: Timestamp | None

    @classmethod
    def of(cls, job: snapshot.JobSnapshot) -> JobSnapshot:
        from tpuctl.model.job import JobSummary

        return cls(
            **dict(Job.model_validate(JobSummary(job.record, job.status))),
            worker_states={
                str(number): job.workers[number].state for number in sorted(job.workers)
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


class Logs(Response):
    """The job whose log was shown, and its result if it was followed to the end."""

    job: str
    attempt: int = ABSENT
    output: str
    state: str | None = ABSENT
    job_exit_code: int | None = ABSENT


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
    detail: str = source("verdict.detail")
    at: Timestamp = source("verdict.at")


class JobExplanation(Response):
    """`failure` is null if the job is running or succeeded."""

    job: str
    state: str
    exit_code: int | None
    attempt: int
    machines_queried: bool
    failure: Failure | None
    previous_failures: list[PreviousFailure]

    @classmethod
    def of(cls, explanation: Explanation, as_typed: Callable[[str], str]) -> JobExplanation:
        """`as_typed` turns the commands of a hint into what the user has to type."""
        failure = None
        if explanation.failure is not None:
            hint = as_typed(explanation.failure.hint)
            failure = {**vars(explanation.failure), "hint": hint, "lines": explanation.lines}
        return cls(
            job=explanation.record.id,
            state=explanation.status.state,
            exit_code=explanation.status.exit_code,
            attempt=explanation.record.attempt,
            machines_queried=not explanation.is_unqueried,
            failure=failure,
            previous_failures=explanation.attempts,
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

    @classmethod
    def of(cls, message: Pasted, hint: str) -> MessageExplanation:
        """`hint` is the message's, with the commands to type."""
        return cls.model_validate({**vars(message), "hint": hint})


class AttemptReport(Response):
    number: int = source("record.attempt")
    zone: str = source("record.zone")
    started: Timestamp
    ended: Timestamp | None
    cost: float | None
    restart_reason: str | None = source("restart.verdict.name")


class JobReport(Response):
    """`curves` are lists of [step, value] by name; `file` is the HTML report, if written."""

    job: str = source("record.id")
    state: str = source("explanation.status.state")
    exit_code: int | None = source("explanation.status.exit_code")
    cost: Number | None
    attempts: list[AttemptReport]
    curves: Annotated[
        dict[str, list[tuple[int, float]]],
        BeforeValidator(lambda curves: {curve.name: curve.all_points for curve in curves}),
    ]
    bundle: str = source("record.bundle")
    file: Path = ABSENT
    markdown: str = ABSENT

    @classmethod
    def of(cls, report: RunReport, **more: Any) -> JobReport:
        return cls.model_validate(report).model_copy(update=more)


class WorkerExit(Response):
    worker: int
    exit_code: int


class CommandResult(Response):
    """A command's exit code on each worker."""

    workers: list[WorkerExit]


class WorkerCopy(Response):
    worker: int
    files: int
    bytes: int


class CopyResult(Response):
    workers: list[WorkerCopy]


class ForwardedPort(Response):
    port: int
    local_port: int
    url: str


class PortForwardings(Response):
    worker: int
    ports: list[ForwardedPort]
