"""What each command's `data` is in the envelope of `--json`.

A model is both what is printed and the source of the published schema. Keys keep their names and
meanings; new keys may be added, so programs must ignore unknown ones. Money is in US dollars,
timestamps are in ISO 8601, and null means unknown or not applicable.

Import this module only to print JSON: pydantic takes a while to load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from tpuctl.model.advice import Advice
from tpuctl.model.plan import Change
from tpuctl.model.role import Grant, RoleGroup
from tpuctl.preflight.compile.compile_report import Refusal, Sizes, SourceLine

if TYPE_CHECKING:
    from tpuctl.model import inventory, snapshot, status
    from tpuctl.model.charges import Charge
    from tpuctl.model.events import JobEnded
    from tpuctl.model.explanation import Explanation
    from tpuctl.model.job import JobRecord
    from tpuctl.model.pasted_error import Pasted
    from tpuctl.model.report import RunReport
    from tpuctl.model.role import CustomRole
    from tpuctl.view import orphans

__all__ = [
    "RESPONSES",
    "CheckedScripts",
    "CheckedStack",
    "CommandResult",
    "Compilation",
    "CopyResult",
    "Cost",
    "Diagnosis",
    "Down",
    "Environment",
    "Fault",
    "HelpText",
    "Job",
    "JobExplanation",
    "JobReport",
    "JobSubmission",
    "LocalCloud",
    "LocalDown",
    "LocalReset",
    "LocalStatus",
    "Logs",
    "MessageExplanation",
    "Orphans",
    "Plan",
    "PortForwardings",
    "Rehearsal",
    "ReleasedFaults",
    "Response",
    "Role",
    "Rules",
    "Settings",
    "Status",
    "StoppedJob",
    "Token",
    "WrittenFiles",
]

T = TypeVar("T")


def _finite(value: Any) -> Any:
    """NaN and infinities as strings, as JSON has no such numbers."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _rounded(digits: int) -> AfterValidator:
    return AfterValidator(lambda number: round(number, digits))


Object = dict[str, Any]
Number = Annotated[int | float, WithJsonSchema({"type": "number"})]  # 0 is not printed as 0.0
Measurement = Annotated[
    int | float | str, BeforeValidator(_finite), WithJsonSchema({"type": ["number", "string"]})
]
Dollars = Annotated[Number, _rounded(4)]
SmallDollars = Annotated[Number, _rounded(6)]  # disks cost fractions of a cent per hour
Hours = Annotated[float, _rounded(4)]
Timestamp = Annotated[datetime, PlainSerializer(datetime.isoformat, return_type=str)]
NullIfEmpty = Annotated[T | None, BeforeValidator(lambda value: value or None)]
Length = Annotated[int, BeforeValidator(len)]
Truth = Annotated[bool, BeforeValidator(bool)]


class Response(BaseModel):
    """Built from keywords, a dictionary, or an object with attributes of the same names as the
    keys.

    A key with a default is optional: it is absent if it is not set, or null in the object.
    """

    model_config = ConfigDict(
        frozen=True, defer_build=True, validate_by_name=True, validate_by_alias=True
    )

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_unset=True)

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if isinstance(value, Mapping | Response):
            return value
        read = {}
        for name, field in cls.model_fields.items():
            path = str(field.validation_alias or name)
            if field.is_required() or field.validation_alias:
                read[path] = _follow(value, path)
                if read[path] is None and not field.is_required():
                    del read[path]
        return read


def source(path: str, default: Any = ...) -> Any:
    """Says that a key shows another attribute: `node.zone`, null if `node` is None."""
    return Field(default, validation_alias=path)


def _follow(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


# Help, templates, checks --------------------------------------------------------------------------


class HelpText(Response):
    """A page of text."""

    text: str


class WrittenFiles(Response):
    """The files that were written, relative to the current folder."""

    files: list[Path]


class CheckedStack(Response):
    """The checked stack file."""

    stack: str
    type: str
    zone: str
    runtime: str
    bucket: str
    price: str


class CheckFinding(Response):
    """A violation of a rule; lines and columns count from 1."""

    code: str
    severity: str
    file: Path = source("path")
    line: int
    column: Annotated[int, AfterValidator(lambda column: column + 1)]
    message: str
    hint: str
    fixable: Truth = source("edits")


class CheckNote(Response):
    file: Path = source("path")
    line: int
    message: str


class CheckedScripts(Response):
    """The findings in scripts; the stack's keys are absent without a stack file."""

    stack: str = ""
    type: str = ""
    zone: str = ""
    runtime: str = ""
    bucket: str = ""
    price: str = ""
    target: str
    files: list[Path]
    findings: list[CheckFinding]
    suppressed: int
    notes: list[CheckNote]


class Rule(Response):
    code: str
    name: str
    severity: str
    summary: str
    rationale: str
    bad: str
    good: str


class Rules(Response):
    """Rules of the check, explained."""

    rules: list[Rule]


class Finding(Response):
    """The result of one check of `doctor`."""

    check: str
    state: str
    message: str
    hint: str
    command: str
    requires: str = source("root")


class Diagnosis(Response):
    """All checks, in the order to fix them."""

    checks: list[Finding]
    next: str


class GcloudRole(Response):
    title: str
    description: str
    stage: str
    includedPermissions: list[str] = source("permissions")


class Role(Response):
    """A custom role; `role` is what `gcloud iam roles create --file` takes."""

    id: str
    project: str
    role: GcloudRole
    groups: list[RoleGroup]
    optional_permissions: list[str]
    grants: list[Grant]

    @classmethod
    def of(cls, custom_role: CustomRole) -> Role:
        return cls.model_validate({**vars(custom_role), "role": custom_role})


# Stacks -------------------------------------------------------------------------------------------


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


class Plan(Response):
    """What `up` would do, or did; `price_per_hour` is for one node, `cost` for the whole stack."""

    stack: str = source("stack.name")
    zone: str = source("stack.zone")
    changes: list[Change] = source("plan.changes")
    price_per_hour: Number | None = source("stack.price.per_hour")
    price_as_of: str | None = source("stack.price.read")
    cost: Cost
    fallback_costs: dict[str, Cost]
    quota: Quota


class Node(Response):
    name: str
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
    def of(cls, node: status.NodeStatus, charges: Sequence[Charge]) -> Node:
        spent = next((charge.so_far for charge in charges if charge.item.node is node), None)
        return cls.model_validate({**vars(node), "age_hours": node.hours(), "cost_so_far": spent})


class Resource(Response):
    """An existing resource."""

    kind: str = source("item.kind")
    name: str = source("item.name")
    zone: NullIfEmpty[str] = source("item.zone")
    state: NullIfEmpty[str] = source("item.state")
    type: NullIfEmpty[str] = source("item.detail")
    size_gb: NullIfEmpty[Number] = source("item.size_gb")
    capacity: str | None = source("item.tpu_capacity")
    created: Timestamp | None = source("item.created")
    age_hours: Hours | None = source("charge.hours")
    per_hour: Dollars | None = source("charge.per_hour")
    cost_so_far: Dollars | None = source("charge.so_far")
    price_note: str | None = source("charge.note")
    price_as_of: NullIfEmpty[str] = source("charge.read")

    @classmethod
    def of(cls, item: inventory.InventoryItem, charge: Charge | None) -> Resource:
        """The cost is null if the item is free."""
        return cls.model_validate(SimpleNamespace(item=item, charge=charge))


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


class Status(Response):
    """The resources and jobs of a stack."""

    stack: str
    project: str
    nodes: list[Node]
    bucket: str | None
    resources: list[Resource]
    per_hour: Dollars | None
    cost_so_far: Dollars | None
    complete: bool
    advice: list[Advice]
    jobs: list[JobSnapshot]

    @classmethod
    def of(cls, moment: snapshot.Snapshot) -> Status:
        from tpuctl.model.charges import hourly, so_far

        stack_status = moment.status
        charges = stack_status.charges
        by_address = {charge.item.address: charge for charge in charges}
        per_hour, knows_prices = hourly(charges)
        spent, knows_all = so_far(charges)
        return cls(
            stack=stack_status.stack.name,
            project=stack_status.stack.project,
            nodes=[Node.of(node, charges) for node in stack_status.nodes],
            bucket=stack_status.bucket,
            resources=[
                Resource.of(item, by_address.get(item.address)) for item in stack_status.inventory
            ],
            per_hour=per_hour,
            cost_so_far=spent,
            complete=knows_prices and knows_all,
            advice=stack_status.advice,
            jobs=[JobSnapshot.of(job) for job in moment.jobs],
        )


class RemainingResource(Response):
    """A resource after `down`: `deleted`, `kept` or `remains`."""

    address: str
    state: str
    reason: str
    billable: bool = source("is_billable")
    bytes: int | None = source("holding.bytes")
    objects: int | None = source("holding.objects")
    count_complete: bool | None = source("holding.is_whole")
    per_month: Dollars | None


class Down(Response):
    remaining: list[RemainingResource]


class OrphanedResource(Resource):
    orphaned: bool = source("is_orphaned")
    reason: str


class OrphanStack(Response):
    stack: str
    in_use: bool = source("is_in_use")
    command: str
    resources: list[OrphanedResource] = source("rows")


class Orphans(Response):
    """Leftover resources of stacks in a project."""

    project: str
    per_hour: Dollars
    complete: bool
    stacks: list[OrphanStack]

    @classmethod
    def of(cls, leftovers: orphans.Orphans, command: Callable[[str], str]) -> Orphans:
        """`command` returns the command to type for a stack."""
        per_hour, is_complete = leftovers.hourly
        return cls(
            project=leftovers.project,
            per_hour=per_hour,
            complete=is_complete,
            stacks=[{**vars(group), "command": command(group.stack)} for group in leftovers.groups],
        )


# Jobs ---------------------------------------------------------------------------------------------


class JobSubmission(Response):
    """`job_exit_code` is the job's; the envelope's `exit_code` may be one of tpuctl's."""

    job: str
    output: str
    state: str | None = None
    job_exit_code: int | None = None
    remaining: list[RemainingResource] = []

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
    attempt: int = 0
    output: str
    state: str | None = None
    job_exit_code: int | None = None


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
    file: Path = Path()
    markdown: str = ""

    @classmethod
    def of(cls, report: RunReport, **more: Any) -> JobReport:
        return cls.model_validate(report).model_copy(update=more)


# Rehearsals ---------------------------------------------------------------------------------------


class RehearsalTarget(Response):
    """The TPU that a script was rehearsed for."""

    type: str
    kind: Literal["vm", "node"]
    replicas: int
    chips: int
    bytes_per_replica: int
    tensorflow: str | None
    per_hour: Number | None


class RehearsalFinding(Response):
    topic: str
    severity: str
    message: str
    detail: str
    hint: str
    file: Path | None = source("where.file")
    line: int | None = source("where.line")


class MeasuredFunction(Response):
    """A compiled function, with the shapes of its arguments in each compilation."""

    function: str
    compilations: int
    seconds: Measurement
    peak_bytes: int | None
    dynamic: bool
    shapes: list[list[str]]


class Measurements(Response):
    """What was measured on this machine, in the first run; `replica_…` in the second."""

    steps: int
    step_seconds: Measurement | None
    waited_share: Measurement | None
    examples: int | None
    examples_per_second: Measurement | None
    losses: list[Measurement]
    planned_steps: int | None
    functions: list[MeasuredFunction]
    replicas: int | None
    replica_steps: int | None
    replica_examples: int | None


class Estimate(Response):
    """Lower and upper bounds for the whole run on the TPU, or why there are none."""

    unavailable_reason: str
    steps: int | None
    step_seconds: tuple[Measurement, Measurement] | None
    seconds: tuple[Measurement, Measurement] | None
    dollars: tuple[Measurement, Measurement] | None


class RehearsalRun(Response):
    """`stopped` is why tpuctl stopped it: `timeout`, `interrupted`, or empty."""

    mode: str
    replicas: int
    steps: Length
    exit_code: int | None
    stopped: str
    seconds: Annotated[Number, _rounded(3)]
    log: Path


class Rehearsal(Response):
    """The result of a rehearsal; NaN and infinities are strings."""

    target: RehearsalTarget
    findings: list[RehearsalFinding] = source("assessment.findings")
    measured: Measurements = source("assessment.measured")
    estimate: Estimate = source("assessment.estimate")
    runs: list[RehearsalRun] = source("passes")
    skipped: list[str]
    output: str
    interrupted: bool = source("is_interrupted")


class CompiledBatch(Response):
    """`shortfall` is empty if the batch fits; `peak` is absent if its memory use is unknown."""

    batch: int | None
    sizes: Sizes | None
    shortfall: str
    compiler_message: str
    seconds: Number
    peak: int = source("sizes.peak", 0)


class Compilation(Response):
    """The result of `rehearse --compile`. `requested`, `alternatives`, `largest_batch` and
    `batch_per_core` are per core, `batch` and `largest_total_batch` over all replicas."""

    script: str
    type: str
    generation: str
    replicas: int
    tensorflow: str
    runtime: str | None
    function: str
    where: SourceLine | None
    inputs: list[tuple[str, list[int]]]
    available_bytes: int | None
    requested: CompiledBatch | None
    alternatives: list[CompiledBatch]
    largest_batch: int | None
    largest_is_exact: bool
    refusal: Refusal | None
    dynamic_dimensions: int
    has_bfloat16: bool
    variable_bytes: int
    notes: list[str]
    batch_per_core: int | None = source("requested.batch")
    batch: int | None
    largest_total_batch: int | None


# Machines -----------------------------------------------------------------------------------------


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


# The catalog --------------------------------------------------------------------------------------


class TypeCatalog(Response):
    """`as_of` is the date of the catalog; `live` is Google's answer with --live."""

    as_of: str
    types: list[Object]
    live: Object | None


class ZoneCatalog(Response):
    as_of: str
    zones: list[Object]
    live: Object | None


class RuntimeCatalog(Response):
    as_of: str
    runtimes: list[Object]
    live: Object | None


class Prices(Response):
    """Exactly one of `prices`, `offers`, `machines`, `disks` and `storage` is present."""

    as_of: str
    type: str | None = None
    prices: list[Object] = []
    offers: list[Object] = []
    machines: list[Object] = []
    disks: list[Object] = []
    general: Any = None
    storage: list[Object] = []
    region: str | None = None
    budget: Object = {}
    live: Object | None = None


class Limits(Response):
    """The quota that nodes of a type need; of all types if `type` is null."""

    type: str | None
    limits: list[Object]
    live: Object | None


# The local cloud ----------------------------------------------------------------------------------


class LocalCloud(Response):
    url: str
    pace: str
    folder: Path = source("home")
    pid: int


class LocalStatus(Response):
    """Only `running` is present if it is false."""

    running: bool
    url: str = ""
    folder: str = ""
    version: str = ""
    pid: int = 0
    home: str = ""
    pace: str = ""
    isolation: str = ""
    image_notes: list[str] = []
    uptime_seconds: Number = 0
    projects: int = 0
    nodes: int = 0
    faults: int = 0
    machines: int = 0
    buckets: int = 0
    objects: int = 0
    object_bytes: int = 0
    requests: int = 0


class LocalDown(Response):
    stopped: bool


class LocalReset(Response):
    folder: Path


class Token(Response):
    member: str
    token: str


class Environment(Response):
    """Environment variables to set and to unset."""

    set: dict[str, str]
    unset: list[str]

    @classmethod
    def of(cls, values: Mapping[str, str | None]) -> Environment:
        """From variables and their values; None unsets one."""
        return cls(
            set={name: value for name, value in values.items() if value is not None},
            unset=[name for name, value in values.items() if value is None],
        )


class Settings(Response):
    """`quota` has limits by id and location; null is unlimited."""

    pace: str
    nodes: str
    quota: dict[str, dict[str, int | None]]
    policies: list[str]
    denied_permissions: list[str]
    propagation: Number
    reservations: list[str]


class HeldCall(Response):
    """A request that a fault holds, since a Unix timestamp."""

    method: str
    caller: str
    since: Number


class Fault(Response):
    """A fault with its options; `due` is a Unix timestamp, `free_bytes` what a disk still takes."""

    id: str
    kind: str
    times: int | Literal["unlimited"]
    method: str = ""
    project: str = ""
    zone: str = ""
    region: str = ""
    type: str = ""
    name: str = ""
    caller: str = ""
    at: int = 0
    text: str = ""
    google_error: str = ""
    code: str = ""
    http: int = 0
    fail_operation: bool = False
    hold_response: bool = False
    body: str = ""
    after_bytes: int = 0
    limit: str = ""
    number: int = 0
    node: str = ""
    worker: int = 0
    mode: str = ""
    seconds: Number = 0
    matched: int
    applied: int
    error: str
    due: Number = 0
    active: bool = False
    free_bytes: int | None = None
    exhausted: bool
    held_calls: list[HeldCall]


class ReleasedFaults(Response):
    released: int


# By command. Its options determine which of several models applies.
RESPONSES: Mapping[str, Any] = {
    "init": WrittenFiles | list[str],
    "doctor": Diagnosis | Role,
    "plan": Plan,
    "up": Plan,
    "status": Status,
    "down": Down,
    "orphans": Orphans,
    "check": CheckedStack | CheckedScripts | Rules,
    "rehearse": Rehearsal | Compilation,
    "run": JobSubmission,
    "jobs": list[Job],
    "jobs show": JobReport,
    "logs": Logs,
    "wait": JobSubmission,
    "stop": StoppedJob,
    "explain": JobExplanation | MessageExplanation,
    "report": JobReport,
    "ssh": CommandResult,
    "cp": CopyResult,
    "forward": PortForwardings,
    "types": TypeCatalog,
    "zones": ZoneCatalog,
    "runtimes": RuntimeCatalog,
    "prices": Prices,
    "quota": Limits | Object,
    "help": HelpText,
    "ci": Object,
    "ci github": Object,
    "ci gitlab": Object,
    "ci cloudbuild": Object,
    "ci start": JobSubmission,
    "ci follow": JobSubmission,
    "ci summary": JobReport,
    "local up": LocalCloud,
    "local down": LocalDown,
    "local status": LocalStatus,
    "local reset": LocalReset,
    "local token": Token,
    "local env": Environment,
    "local set": Settings,
    "local fault add": Fault,
    "local fault list": list[Fault],
    "local fault remove": list[Fault],
    "local fault release": ReleasedFaults,
}
