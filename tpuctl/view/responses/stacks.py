"""Answers about stacks: plans, resources, jobs and machines."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from tpuctl.errors import Diagnostic
from tpuctl.model.jobs.sweep import describe_values
from tpuctl.model.plan import Change
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.status.advice import Advice
from tpuctl.units import clock_time, format_duration
from tpuctl.view.columns import ABSENT, JSON_ONLY, Column, Fields, Number
from tpuctl.view.responses.base import (
    Dollars,
    Hours,
    Measurement,
    NullIfEmpty,
    Response,
    SmallDollars,
    Timestamp,
    source,
)

if TYPE_CHECKING:
    from tpuctl.model.events import JobEnded
    from tpuctl.model.jobs.explanation import Explanation
    from tpuctl.model.jobs.job import JobRecord, JobSummary
    from tpuctl.model.jobs.report import RunReport
    from tpuctl.model.jobs.sweep import SweepValues
    from tpuctl.model.logs.curves import Curve
    from tpuctl.model.stack.stack import Stack
    from tpuctl.model.status import inventory, snapshot, status
    from tpuctl.model.status.charges import Charge
    from tpuctl.view.stack import orphans


class WrittenFiles(Response):
    """The files that were written, relative to the current folder."""

    files: list[Path]


class CostLine(Response):
    item: str
    per_hour: SmallDollars | None
    note: str
    as_of: str = source("read")


class Cost(Response):
    """`complete` is false if a price is unknown."""

    currency: Literal["USD"]
    per_hour: SmallDollars | None
    per_month: SmallDollars | None
    complete: bool = source("is_complete")
    as_of: str = source("read")
    lines: list[CostLine]


def _by_candidate_key(costs: dict[Candidate, object]) -> dict[str, object]:
    return {candidate.key: cost for candidate, cost in costs.items()}


class QuotaLine(Response):
    """`limit` and `remaining` are null where the limit is unknown."""

    quota: str = source("limit")
    location: str = source("place")
    unit: NullIfEmpty[str]
    limit: Number | None = source("allowed")
    usage: Number | None = source("used")
    requested: Number | None = source("added")
    remaining: Number | None = source("left")


class Quota(Response):
    limits: list[QuotaLine] = source("lines")
    unavailable: list[str] = source("unread")


class Race(Response):
    """`cost_per_hour` is that of the TPUs of all zones together, `extra_cost` what it costs if all
    zones grant one at the same time, until those in excess are deleted, in `seconds`."""

    zones: list[str]
    cost_per_hour: Dollars | None = source("per_hour")
    extra_cost: SmallDollars | None = source("extra")
    seconds: Number


class Plan(Response):
    """What `up` would do, or did; `price_per_hour` is for one node, `cost` for the whole stack.

    `fallback_costs` are in the order in which `up` tries them: by zone, or by `ZONE/compute` for
    Compute Engine."""

    stack: str = source("stack.name")
    zone: str = source("stack.zone")
    api: Literal["tpu", "compute"] = source("stack.api")
    runtime: str = source("stack.runtime.version")
    framework: str | None = source("stack.framework.framework")
    python: str | None = ABSENT
    changes: list[Change] = source("plan.changes")
    price_per_hour: Number | None = source("stack.price.per_hour")
    price_as_of: str | None = source("stack.price.read")
    cost: Cost
    fallback_costs: Annotated[dict[str, Cost], BeforeValidator(_by_candidate_key)]
    race: Race | None = source("race_cost")
    quota: Quota

    @classmethod
    def of(cls, prepared: object, python: str | None) -> Plan:
        """A plan, and the version of the Python that jobs bring; None if it is the image's."""
        return cls.from_object(prepared, python=python)


def _address(row: Fields) -> str:
    return "/".join(filter(None, (row["kind"], row["zone"], row["name"])))


def _charged_age(row: Fields) -> str:
    """The age of what is charged."""
    is_known = row["created"] is not None and row["age_hours"] is not None
    return format_duration(row["age_hours"] * 3600) if is_known else ""


def _rate(row: Fields) -> Any:
    if row["per_hour"] is not None:
        return row["per_hour"]
    if row["age_hours"] is None:  # it costs nothing itself
        return ""
    return "by size" if row["kind"] == "bucket" else "unknown"


class Resource(Response):
    """An existing resource."""

    kind: str = source("item.kind")
    name: Annotated[str, Column("resource", show=_address)] = source("item.name")
    zone: NullIfEmpty[str] = source("item.zone")
    state: NullIfEmpty[str] = source("item.state")
    type: NullIfEmpty[str] = source("item.detail")
    size_gb: NullIfEmpty[Number] = source("item.size_gb")
    capacity: str | None = source("item.tpu_capacity")
    created: Timestamp | None = source("item.created")
    age_hours: Annotated[Hours | None, Column("age", sort="age", show=_charged_age)] = source(
        "charge.hours"
    )
    per_hour: Annotated[Dollars | None, Column(show=_rate)] = source("charge.per_hour")
    cost_so_far: Dollars | None = source("charge.so_far")
    price_note: str | None = source("charge.note")
    price_as_of: NullIfEmpty[str] = source("charge.read")

    @classmethod
    def of(cls, item: inventory.InventoryItem, charge: Charge | None) -> Resource:
        """The cost is null if the item is free."""
        return cls.model_validate(SimpleNamespace(item=item, charge=charge))


class RemainingResource(Response):
    """A resource after `down`: `deleted`, `kept` or `remains`."""

    address: str
    state: str
    reason: str
    billable: bool = source("is_billable")
    bytes: int | None = source("holding.bytes")
    objects: int | None = source("holding.objects")
    count_complete: bool | None = source("holding.is_whole")
    cached_bytes: int | None = source("holding.cached_bytes")
    per_month: Dollars | None


class Down(Response):
    remaining: list[RemainingResource]


class OrphanedResource(Resource):
    orphaned: bool = source("is_orphaned")
    reason: Annotated[str, Column()]

    @classmethod
    def row(cls, resource: orphans.ListedItem) -> dict[str, Any]:
        """Its fields, with the price as it is before it is rounded for JSON."""
        per_hour = None if resource.charge is None else resource.charge.per_hour
        return {**dict(cls.model_validate(resource)), "per_hour": per_hour}


class OrphanStack(Response):
    stack: str
    in_use: bool = source("is_in_use")
    command: str
    resources: list[OrphanedResource] = source("rows")


class Orphans(Response):
    """Leftovers of stacks in a project; `unlisted` are the kinds that could not be listed."""

    project: str
    per_hour: Dollars
    complete: bool
    stacks: list[OrphanStack]
    unlisted: list[str]

    @classmethod
    def of(
        cls,
        leftovers: orphans.Orphans,
        rows: Mapping[str, Sequence[Fields]],
        command: orphans.DownCommand,
    ) -> Orphans:
        """`rows` are the resources by stack; `command` returns the command to type for a stack."""
        per_hour, is_complete = leftovers.hourly
        return cls.from_object(
            leftovers,
            per_hour=per_hour,
            complete=is_complete,
            stacks=[
                OrphanStack.from_object(
                    group, command=group.down(command), resources=rows[group.stack]
                )
                for group in leftovers.groups
            ],
        )


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


class JobReport(Response):
    """`curves` are lists of [position, value] by name, and `curve_units` what their positions
    count: "step"; where the log tells none, "epoch", or "line" of those with metrics. `python` is
    the version that the job brings, null for the image's. `file` is the HTML report, if
    written."""

    job: str = source("record.id")
    state: str = source("explanation.status.state")
    exit_code: int | None = source("explanation.status.exit_code")
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
    bundle: str = source("record.bundle")
    python: str | None = source("record.python")
    file: Path = ABSENT
    markdown: str = ABSENT


class WorkerExit(Response):
    worker: int
    slice: int | None
    exit_code: int


class CommandResult(Response):
    """A command's exit code on each worker."""

    workers: list[WorkerExit]


class WorkerCopy(Response):
    worker: int
    slice: int | None
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
    slice: int | None
    ports: list[ForwardedPort]


class Dashboard(Response):
    """The dashboard's page; `url` has the token that it requires."""

    url: str


class Notebook(Response):
    """A notebook server while its port is forwarded."""

    job: str
    url: str
    files: str


class SshHosts(Response):
    """The hosts that ssh knows, or with --print would know, in `file`."""

    hosts: list[str]
    file: str
    included_by: str | None  # ssh's configuration; None if it does not include the file


class Node(Response):
    name: str
    slice: int | None
    zone: str
    state: str
    health: str | None
    type: str = source("accelerator_type")
    runtime: str
    created: Timestamp | None
    age_hours: Hours
    cost_so_far: Dollars | None
    addresses: list[str]
    endpoints: list[str]

    @classmethod
    def of(
        cls, node: status.NodeStatus, charges: Sequence[Charge], stack: Stack, at: datetime
    ) -> Node:
        is_slice = stack.slices > 1 and node.name in stack.nodes
        return cls.from_object(
            node,
            slice=stack.nodes.index(node.name) if is_slice else None,
            age_hours=node.hours(at),
            cost_so_far=next((cost.so_far for cost in charges if cost.item.node is node), None),
        )


class Status(Response):
    """The resources and jobs of a stack; `unlisted` are the kinds that could not be listed."""

    stack: str = source("status.stack.name")
    project: str = source("status.stack.project")
    nodes: list[Node]
    bucket: str | None = source("status.bucket")
    resources: list[Resource]
    per_hour: Dollars | None
    cost_so_far: Dollars | None
    complete: bool
    advice: list[Advice]
    jobs: list[JobSnapshot]
    unlisted: list[str]

    @classmethod
    def of(cls, stack_snapshot: snapshot.Snapshot) -> Status:
        from tpuctl.model.status.charges import hourly, so_far

        stack_status = stack_snapshot.status
        charges = stack_status.charges
        by_address = {charge.item.address: charge for charge in charges}
        per_hour, knows_prices = hourly(charges)
        spent, knows_all = so_far(charges)
        return cls.from_object(
            stack_snapshot,
            nodes=[
                Node.of(node, charges, stack_status.stack, stack_status.at)
                for node in stack_status.nodes
            ],
            resources=[
                Resource.of(item, by_address.get(item.address)) for item in stack_status.inventory
            ],
            per_hour=per_hour,
            cost_so_far=spent,
            complete=knows_prices and knows_all and not stack_status.unlisted,
            jobs=[JobSnapshot.of(job) for job in stack_snapshot.jobs],
            unlisted=[kind.partition("/")[0] for kind in stack_status.unlisted],
        )
