"""What each command's `data` is in the envelope of `--json`.

The published schema is made of these. Keys keep their names and meanings; new keys may be
added, so programs must ignore unknown ones. Money is in US dollars, timestamps are in ISO 8601, and
null means unknown or not applicable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

__all__ = [
    "RESPONSES",
    "CommandResult",
    "CopyResult",
    "Diagnosis",
    "Limits",
    "LocalCloud",
    "LocalDown",
    "LocalReset",
    "LocalStatus",
    "PortForwardings",
    "Prices",
    "ReleasedFaults",
    "Role",
    "RuntimeCatalog",
    "Token",
    "TypeCatalog",
    "ZoneCatalog",
]

Object = dict[str, Any]


class HelpText(TypedDict):
    """A page of text."""

    text: str


class WrittenFiles(TypedDict):
    """The files that were written, relative to the current folder."""

    files: list[str]


class CheckedStack(TypedDict):
    """The checked stack file."""

    stack: str
    type: str


class Rules(TypedDict):
    """Rules of the check, explained."""

    rules: list[Object]


class Change(TypedDict):
    """The planned or applied change of one resource."""

    address: str
    action: Literal["create", "update", "replace", "delete", "nothing", "adopt"] | str
    because: str
    fields: list[str]


class CostLine(TypedDict):
    item: str
    per_hour: float | None
    note: str
    as_of: str


class Cost(TypedDict):
    """`complete` is false if a price is unknown."""

    currency: Literal["USD"]
    per_hour: float | None
    per_month: float | None
    complete: bool
    as_of: str
    lines: list[CostLine]


class QuotaLine(TypedDict):
    """`limit` and `remaining` are null where the limit is unknown."""

    quota: str
    location: str
    unit: str | None
    limit: float | None
    usage: float | None
    requested: float | None
    remaining: float | None


class Quota(TypedDict):
    limits: list[QuotaLine]
    unavailable: list[str]


class Plan(TypedDict):
    """What `up` would do, or did; `price_per_hour` is for one node, `cost` for the whole stack."""

    stack: str
    zone: str
    changes: list[Change]
    price_per_hour: float | None
    price_as_of: str | None
    cost: Cost
    fallback_costs: dict[str, Cost]
    quota: Quota


class Node(TypedDict):
    name: str
    zone: str
    state: str
    health: str | None
    type: str
    runtime: str
    created: str | None
    age_hours: float
    cost_so_far: float | None
    addresses: list[str]
    endpoints: list[str]


class Resource(TypedDict):
    """An existing resource."""

    kind: str
    name: str
    zone: str | None
    state: str | None
    type: str | None
    size_gb: float | None
    capacity: str | None
    created: str | None
    age_hours: float | None
    per_hour: float | None
    cost_so_far: float | None
    price_note: str | None
    price_as_of: str | None


class Attempt(TypedDict):
    """An attempt after the first, and why it was started."""

    number: int
    zone: str
    node: str
    cause: Object
    started: str
    started_by: str


class Job(TypedDict):
    """A job; `exit_code` is null while it runs."""

    id: str
    kind: Literal["script", "module", "shell"]
    script: str
    args: list[str]
    state: str
    exit_code: int | None
    detail: str
    attempt: int
    attempts: list[Attempt]
    retries_left: dict[str, int] | None
    workers: list[int]
    submitted: str
    submitted_by: str
    finished: str | None
    output: str


class JobSnapshot(Job):
    """A job with its workers' states, its progress and the time of its last log output."""

    worker_states: dict[str, str]
    progress: Object
    last_log_at: str | None


class Advice(TypedDict):
    text: str
    command: str


class Status(TypedDict):
    """The resources and jobs of a stack."""

    stack: str
    project: str
    nodes: list[Node]
    bucket: str | None
    resources: list[Resource]
    per_hour: float | None
    cost_so_far: float | None
    complete: bool
    advice: list[Advice]
    jobs: list[JobSnapshot]


class RemainingResource(TypedDict):
    """A resource after `down`: `deleted`, `kept` or `remains`."""

    address: str
    state: str
    reason: str
    billable: bool
    bytes: int | None
    objects: int | None
    count_complete: bool | None
    per_month: float | None


class Down(TypedDict):
    remaining: list[RemainingResource]


class OrphanedResource(Resource):
    orphaned: bool
    reason: str


class OrphanStack(TypedDict):
    stack: str
    in_use: bool
    command: str
    resources: list[OrphanedResource]


class Orphans(TypedDict):
    """Leftover resources of stacks in a project."""

    project: str
    per_hour: float
    complete: bool
    stacks: list[OrphanStack]


class JobSubmission(TypedDict):
    """`job_exit_code` is the job's; the envelope's `exit_code` may be one of tpuctl's."""

    job: str
    output: str
    state: NotRequired[str | None]
    job_exit_code: NotRequired[int | None]
    remaining: NotRequired[list[RemainingResource]]


class Logs(TypedDict):
    """The job whose log was shown, and its result if it was followed to the end."""

    job: str
    output: str
    attempt: NotRequired[int]
    state: NotRequired[str | None]
    job_exit_code: NotRequired[int | None]


class StoppedJob(TypedDict):
    job: str
    state: str
    exit_code: int | None


class Failure(TypedDict):
    kind: str
    name: str
    cause: str
    hint: str
    worker: int | None
    detail: str
    lines: list[Any]


class PreviousFailure(TypedDict):
    """Why a previous attempt ended."""

    attempt: int
    kind: str
    name: str
    cause: str
    worker: int | None
    detail: str
    at: str


class JobExplanation(TypedDict):
    """`failure` is null if the job is running or succeeded."""

    job: str
    state: str
    exit_code: int | None
    attempt: int
    machines_queried: bool
    failure: Failure | None
    previous_failures: list[PreviousFailure]


class MessageExplanation(TypedDict):
    """What an error message means."""

    name: str
    kind: str
    summary: str
    explanation: str
    hint: str
    fault: str
    line: str


class AttemptReport(TypedDict):
    number: int
    zone: str
    started: str
    ended: str | None
    cost: float | None
    restart_reason: str | None


class JobReport(TypedDict):
    """`curves` are lists of [step, value] by name; `file` is the HTML report, if written."""

    job: str
    state: str
    exit_code: int | None
    cost: float | None
    attempts: list[AttemptReport]
    curves: dict[str, list[list[float]]]
    bundle: str
    file: NotRequired[str]
    markdown: NotRequired[str]


class WorkerExit(TypedDict):
    worker: int
    exit_code: int


class CommandResult(TypedDict):
    """A command's exit code on each worker."""

    workers: list[WorkerExit]


class WorkerCopy(TypedDict):
    worker: int
    files: int
    bytes: int


class CopyResult(TypedDict):
    workers: list[WorkerCopy]


class ForwardedPort(TypedDict):
    port: int
    local_port: int
    url: str


class PortForwardings(TypedDict):
    worker: int
    ports: list[ForwardedPort]


class TypeCatalog(TypedDict):
    """`as_of` is the date of the catalog; `live` is Google's answer with --live."""

    as_of: str
    types: list[Object]
    live: Object | None


class ZoneCatalog(TypedDict):
    as_of: str
    zones: list[Object]
    live: Object | None


class RuntimeCatalog(TypedDict):
    as_of: str
    runtimes: list[Object]
    live: Object | None


class Prices(TypedDict):
    """Exactly one of `prices`, `offers`, `machines`, `disks` and `storage` is present."""

    as_of: str
    type: NotRequired[str | None]
    prices: NotRequired[list[Object]]
    offers: NotRequired[list[Object]]
    machines: NotRequired[list[Object]]
    disks: NotRequired[list[Object]]
    general: NotRequired[Any]
    storage: NotRequired[list[Object]]
    region: NotRequired[str | None]
    budget: NotRequired[Object]
    live: NotRequired[Object | None]


class Limits(TypedDict):
    """The quota that nodes of a type need; of all types if `type` is null."""

    type: str | None
    limits: list[Object]
    live: Object | None


class LocalCloud(TypedDict):
    url: str
    pace: str
    folder: str
    pid: int


class LocalStatus(TypedDict):
    """Only `running` is present if it is false."""

    running: bool
    url: NotRequired[str]
    folder: NotRequired[str]
    home: NotRequired[str]
    version: NotRequired[str]
    pid: NotRequired[int]
    pace: NotRequired[str]
    isolation: NotRequired[str]
    image_notes: NotRequired[list[str]]
    uptime_seconds: NotRequired[float]
    projects: NotRequired[int]
    nodes: NotRequired[int]
    faults: NotRequired[int]
    machines: NotRequired[int]
    buckets: NotRequired[int]
    objects: NotRequired[int]
    object_bytes: NotRequired[int]
    requests: NotRequired[int]


class LocalDown(TypedDict):
    stopped: bool


class LocalReset(TypedDict):
    folder: str


class Token(TypedDict):
    member: str
    token: str


class ReleasedFaults(TypedDict):
    released: int


class Finding(TypedDict):
    """The result of one check of `doctor`."""

    check: str
    state: str
    message: str
    hint: str
    command: str
    requires: str


class Diagnosis(TypedDict):
    """All checks, in the order to fix them."""

    checks: list[Finding]
    next: str


class Role(TypedDict):
    """A custom role; `role` is what `gcloud iam roles create --file` takes."""

    id: str
    project: str
    role: Object
    groups: list[Object]
    optional_permissions: list[str]
    grants: list[Object]


# By command. With several models, the command's options determine which one applies.
RESPONSES: Mapping[str, tuple[Any, ...]] = {
    "init": (WrittenFiles, list[str]),
    "doctor": (Diagnosis, Role),
    "plan": (Plan,),
    "up": (Plan,),
    "status": (Status,),
    "down": (Down,),
    "orphans": (Orphans,),
    "check": (CheckedStack, Rules, Object),
    "rehearse": (Object,),
    "run": (JobSubmission,),
    "jobs": (list[Job],),
    "jobs show": (JobReport,),
    "logs": (Logs,),
    "wait": (JobSubmission,),
    "stop": (StoppedJob,),
    "explain": (JobExplanation, MessageExplanation, Object),
    "report": (JobReport,),
    "ssh": (CommandResult,),
    "cp": (CopyResult,),
    "forward": (PortForwardings,),
    "types": (TypeCatalog,),
    "zones": (ZoneCatalog,),
    "runtimes": (RuntimeCatalog,),
    "prices": (Prices,),
    "quota": (Limits, Object),
    "help": (HelpText,),
    "ci": (Object,),
    "ci github": (Object,),
    "ci gitlab": (Object,),
    "ci cloudbuild": (Object,),
    "ci start": (JobSubmission,),
    "ci follow": (JobSubmission,),
    "ci summary": (JobReport,),
    "local up": (LocalCloud,),
    "local down": (LocalDown,),
    "local status": (LocalStatus,),
    "local reset": (LocalReset,),
    "local token": (Token,),
    "local env": (Object,),
    "local set": (Object, list[Any]),
    "local fault add": (Object,),
    "local fault list": (list[Object],),
    "local fault remove": (list[Object],),
    "local fault release": (ReleasedFaults,),
}
