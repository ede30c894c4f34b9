"""Jobs as recorded in the bucket: what was submitted, and the status of each worker."""

from __future__ import annotations

import itertools
import random
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from tpuctl.model.jobs.attempt import Attempt, Placement, Retries, Retry, retries_left
from tpuctl.model.jobs.hang import Hang, JobLimits
from tpuctl.model.jobs.installation import Installation
from tpuctl.model.jobs.queue import JobStart, Queued
from tpuctl.model.scripts.framework import Framework
from tpuctl.model.text.names import JOBS
from tpuctl.model.text.record_parsing import (
    AttemptNumber,
    ByteCount,
    Count,
    ExitCode,
    Index,
    Moment,
    Name,
    Seconds,
    Text,
)
from tpuctl.model.workers.chip_metrics import ChipMetrics
from tpuctl.model.workers.worker_numbering import WorkerNumbering

NOTEBOOK = "notebook"  # the program of jobs of that kind
EXIT_LOST = 69
EXIT_RETRY = 75  # EX_TEMPFAIL of <sysexits.h>: a script requests another attempt
EXIT_TIMED_OUT = 124
EXIT_STOPPED = 143

JobKind = Literal["script", "module", "shell", "notebook"]
EndState = Literal["succeeded", "failed", "stopped", "timed_out", "lost"]
WorkerState = Literal["preparing", "ready", "running", EndState]
ENDED: frozenset[WorkerState] = frozenset(get_args(EndState))

WORDS = """
acorn amber anchor apple aspen basil beacon birch bramble breeze brook candle canyon cedar cherry
cinder clover cobalt comet copper coral cosmos cotton cricket crystal dahlia delta ember falcon
feather fern finch fjord forest garnet ginger glacier granite harbor hazel heron honey indigo iris
ivory jade jasmine juniper kestrel lagoon lantern lark laurel lemon lilac linen lotus lunar lupin
maple marble meadow mimosa mint mosaic myrtle nectar nutmeg ocean olive onyx opal orchid otter
pebble pepper petal pine plum poplar poppy prairie quartz quill raven reed ripple river robin
saffron sage sequoia sierra silver sorrel sparrow spruce summit swift tango teal thistle thyme
tulip valley velvet violet walnut willow wren zephyr
"""


class WorkerRecord(BaseModel):
    """A worker's record of one attempt, written by its supervisor. Unknown fields are ignored: a
    newer supervisor may have written it."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    job: Name
    attempt: AttemptNumber
    worker: Index
    state: WorkerState
    exit_code: ExitCode | None = Field(None, description="128 + N if ended by signal N.")
    signal: ExitCode | None = None
    restarts: Count = Field(
        0,
        description="Number of restarts because the TPU node's account did not have access yet.",
    )
    started: Moment
    finished: Moment | None = None
    log_bytes: ByteCount | None = Field(None, description="Length of the complete log, once ended.")
    cause: Name = Field(
        "",
        description="Empty on success, otherwise one of: script, signal, bundle, setup, "
        "requirements, command, stopped, max_hours, max_cost, budget, idle, worker, terminated, "
        "lost, supervisor, start, claim, timeout, slice, accelerator, hang.",
    )
    detail: Text = Field("", description="The cause, in a sentence.")
    hang: Hang | None = Field(None, description="Its hang, until it continues.")
    chips: ChipMetrics | None = Field(None, description="The last sample; None before the first.")
    log_uploaded: bool | None = Field(
        None, description="Whether the bucket has the complete log; None before the end."
    )

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def has_failed(self) -> bool:
        return self.has_ended and self.state != "succeeded"

    @property
    def requests_retry(self) -> bool:
        """Whether its script ended by requesting another attempt."""
        return self.cause == "script" and self.exit_code == EXIT_RETRY

    @property
    def is_bystander(self) -> bool:
        """Whether it was stopped only because another worker ended."""
        return self.state == "stopped" and self.cause == "worker"


class JobRecord(BaseModel):
    """`job.json`: written once, before the job starts. The job's status is derived from the
    workers' records, so that writers cannot disagree about it."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    version: Literal[1] = 1
    id: Name = Field(pattern=r"^[a-z0-9-]+$")  # validated, as another program may have written it
    stack: Name
    project: Name
    zone: Name
    node: Name
    bucket: Name
    kind: JobKind = Field(
        "script",
        description="Run by Python as a script or module (-m), or by a shell; or notebooks.",
    )
    script: Text = Field(
        description="The script, relative to the bundle; or the module or program."
    )
    path: Text = Field("", description="The script as typed to submit it; empty if unknown.")
    args: tuple[Text, ...] = ()
    values: dict[Name, Text] = Field(
        default_factory=dict,
        description="Values of `run --each` in its arguments, by the name of the option.",
    )
    bundle: Name = Field(description="SHA-256 of the bundle's manifest.")
    bundle_name: Name = Field(
        "", description="The bundle's object name; empty if it was sent over SSH."
    )
    bundle_bytes: ByteCount = Field(
        0, description="Total size of its files; uploads may be smaller."
    )
    worker_count: Count = Field(ge=1)
    workers: tuple[Index, ...] = Field(
        min_length=1, max_length=100_000, description="The workers that run it."
    )
    slices: Count = Field(1, ge=1, description="Number of slices that run it together.")
    attempt: AttemptNumber = 1
    submitted: Moment
    submitted_by: Name = ""
    submitted_as: Name = Field(
        "", description="The account, or principals, that it was submitted as, if known."
    )
    env: tuple[Name, ...] = Field((), description="Names of environment variables; never values.")
    installation: Installation = Installation()
    framework: Framework | None = Field(None, description="None if nothing tells.")
    accelerator: Name = Field("", description="TPU type of its nodes; empty if unknown.")
    runtime: Name = Field("", description="Software version of the nodes; empty if unknown.")
    max_hours: Seconds | None = None
    secrets: dict[Name, Text] = Field(
        default_factory=dict, description="Sources of secret variables, by name."
    )
    timeout: Seconds | None = Field(None, description="Maximum seconds of all attempts together.")
    retries: Retries = Retries()
    limits: JobLimits = JobLimits()
    placement: Placement | None = Field(None, description="The machines of the first attempt.")
    queued: Queued | None = Field(
        None, description="Set for a job that was submitted to the stack's queue."
    )

    @property
    def submitter(self) -> str:
        """Who submitted it, and as which account, if known."""
        acting = f" as {self.submitted_as}" if self.submitted_as else ""
        return f"{self.submitted_by}{acting}"

    @property
    def is_waiting(self) -> bool:
        """Whether it is in the queue and has not been started: its machines are not known."""
        return self.queued is not None and not (self.placement and self.placement.node_ids)

    @property
    def argv(self) -> tuple[str, ...]:
        """The command that a worker runs in the bundle's folder; `{python}` is the job's
        interpreter."""
        if self.kind == "notebook":
            return ("{python}", "../notebook.py")
        before = {"script": ("{python}",), "module": ("{python}", "-m"), "shell": ()}[self.kind]
        program = as_argument(self.script) if self.kind == "script" else self.script
        return (*before, program, *self.args)

    @property
    def command(self) -> str:
        """What it runs, as after `tpuctl run`, without the values of secret arguments: reports and
        logs of pipelines show it."""
        return self._command(as_argument(self.script))

    @property
    def typed_command(self) -> str:
        """The same with the script's path as typed to submit it."""
        return self._command(self.script_path)

    def _command(self, script: str) -> str:
        from tpuctl.model.text.redaction import arguments_without_secrets

        if self.kind == "notebook":
            return NOTEBOOK
        before = {"script": "", "module": "-m ", "shell": "-- "}[self.kind]
        between = ["--"] if self.args and self.kind != "shell" else []
        program = script if self.kind == "script" else self.script
        return before + shlex.join([program, *between, *arguments_without_secrets(self.args)[0]])

    @property
    def script_path(self) -> str:
        """The script's path, as typed to submit it."""
        return as_argument(self.path or self.script)

    @property
    def command_line(self) -> str:
        """What was typed to submit it."""
        is_notebook = self.kind == "notebook"
        return "tpuctl notebook" if is_notebook else f"tpuctl run {self.typed_command}"

    @property
    def python(self) -> str | None:
        """The version of the Python that the job brought; None if it is the image's."""
        return self.installation.python.version if self.installation.python is not None else None

    @property
    def numbering(self) -> WorkerNumbering:
        return WorkerNumbering(self.worker_count, self.slices)

    def worker_name(self, worker: int) -> str:
        """The worker as users see it."""
        return self.numbering.name(worker)

    @property
    def prefix(self) -> str:
        """The prefix of the job's objects in the bucket, without a trailing slash."""
        return f"{JOBS}/{self.id}"

    @property
    def object_name(self) -> str:
        return f"{self.prefix}/job.json"

    @property
    def attempt_prefix(self) -> str:
        return f"{self.prefix}/attempts/{self.attempt}"

    @property
    def end_name(self) -> str:
        """The object that ends the attempt on every worker."""
        return f"{self.attempt_prefix}/end.json"

    @property
    def attempt_name(self) -> str:
        """The object that announces an attempt after the first."""
        return f"{self.attempt_prefix}/attempt.json"

    @property
    def verdict_name(self) -> str:
        """The object that says why another attempt follows."""
        return f"{self.attempt_prefix}/verdict.json"

    @property
    def stop_name(self) -> str:
        """The object that prevents further attempts."""
        return f"{self.prefix}/stop.json"

    @property
    def start_name(self) -> str:
        """The object that a queued job is started with."""
        return f"{self.prefix}/start.json"

    @property
    def final_name(self) -> str:
        """The object with the end of a queued job."""
        return f"{self.prefix}/ended.json"

    def started(self, start: JobStart) -> JobRecord:
        """The record of a queued job once it is started."""
        fields = ("placement", "worker_count", "workers", "slices", "accelerator", "runtime")
        changes = {name: getattr(start, name) for name in fields}
        where = {"zone": start.placement.zone, "node": start.placement.node}
        return self.model_copy(update={**changes, **where})

    def at(self, number: int) -> JobRecord:
        """The record for another attempt, on any machines."""
        return self.model_copy(update={"attempt": number})

    def of(self, attempt: Attempt) -> JobRecord:
        """The record for this attempt, on its machines."""
        placement = attempt.placement
        changes = {
            "zone": placement.zone,
            "node": placement.node,
            "accelerator": placement.accelerator or self.accelerator,
            "runtime": placement.runtime or self.runtime,
            "placement": placement,
        }
        return self.at(attempt.number).model_copy(update=changes)

    @property
    def output(self) -> str:
        """The gs:// output folder that all attempts share."""
        return f"gs://{self.bucket}/{self.prefix}/output"

    @property
    def folder(self) -> str:
        """The attempt's folder on a worker, relative to the user's home."""
        return f".tpuctl/jobs/{self.id}/{self.attempt}"

    def log_name(self, worker: int) -> str:
        return f"{self.attempt_prefix}/worker-{worker}.log"

    def record_name(self, worker: int) -> str:
        return f"{self.attempt_prefix}/worker-{worker}.json"

    def value_name(self, worker: int) -> str:
        """The object with what a function returned or raised on a worker."""
        return f"{self.attempt_prefix}/worker-{worker}.value.json"


@dataclass(frozen=True)
class JobStatus:
    """The status of a job over all its workers."""

    state: Literal["queued", "submitted", "preparing", "running", EndState]
    exit_code: int | None = None  # None until all workers have ended
    worker: int | None = None  # the worker that determined it, if any
    detail: str = ""
    finished: datetime | None = None


@dataclass(frozen=True)
class JobSummary:
    """A job and its status, according to the bucket."""

    record: JobRecord  # of its last attempt
    status: JobStatus
    attempts: tuple[Attempt, ...] = ()  # all but the first

    @property
    def retries_left(self) -> dict[Retry, int]:
        return retries_left(self.record.retries, self.attempts)


def job_status(record: JobRecord, workers: Mapping[int, WorkerRecord]) -> JobStatus:
    """The status of a job, from the workers that run the script.

    The exit code is that of the worker that failed first, ignoring workers that ended because
    another one did. A job has ended once all its workers have.
    """
    records = [workers[number] for number in record.workers if number in workers]
    if not records:
        return JobStatus("queued" if record.is_waiting else "submitted")
    if len(records) < len(record.workers) or not all(worker.has_ended for worker in records):
        started = any(worker.state not in ("preparing", "ready") for worker in records)
        return JobStatus("running" if started else "preparing")
    finished = max((worker.finished for worker in records if worker.finished), default=None)
    decisive = first_failure(records)
    if decisive is None:
        return JobStatus("succeeded", 0, finished=finished)
    codes = {"stopped": EXIT_STOPPED, "timed_out": EXIT_TIMED_OUT, "lost": EXIT_LOST}
    # A machine's shutdown is not a failure of the script, even if the script exited first.
    state = "lost" if decisive.cause == "terminated" else decisive.state
    code = codes.get(state, decisive.exit_code)
    assert state != "ready"
    return JobStatus(state, 1 if code is None else code, decisive.worker, decisive.detail, finished)


def lost_worker(
    record: JobRecord,
    worker: int,
    detail: str,
    finished: datetime | None = None,
    *,
    cause: str = "lost",
) -> WorkerRecord:
    """The record for a worker that can no longer write its own."""
    return WorkerRecord(
        job=record.id,
        attempt=record.attempt,
        worker=worker,
        state="lost",
        started=record.submitted,
        finished=finished,
        cause=cause,
        detail=detail,
    )


def first_failure(workers: Iterable[WorkerRecord]) -> WorkerRecord | None:
    """The worker that failed first; bystanders come last."""
    never = datetime.max.replace(tzinfo=UTC)
    failed = [worker for worker in workers if worker.has_failed]
    return min(
        failed,
        key=lambda worker: (worker.is_bystander, worker.finished or never, worker.worker),
        default=None,
    )


def as_argument(path: str) -> str:
    """A relative path as an argument: a leading - would be parsed as an option."""
    return f"./{path}" if path.startswith("-") else path


def new_job_id(now: datetime, choice: random.Random, used_ids: Iterable[str] = ()) -> str:
    """`<yyyymmdd>-<hhmmss>-<word>` in UTC: sorts by time and is pronounceable.

    Its word is not the last one of `used_ids`; once all words are, they are numbered: `reed2`.
    """
    used = {job_id.rpartition("-")[2] for job_id in used_ids}
    for number in itertools.count(1):
        words = [f"{word}{number if number > 1 else ''}" for word in WORDS.split()]
        if unused := [word for word in words if word not in used]:
            break
    return f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{choice.choice(unused)}"
