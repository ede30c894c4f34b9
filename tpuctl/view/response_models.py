"""What each command's `data` is in the envelope of `--json`.

The published schema is made of these. A key stays, and keeps its meaning; there may be new ones,
which no program may take amiss. Money is in US dollars, moments are in ISO 8601, and null stands
for what is not known or does not apply.
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
    """A page to read."""

    text: str


class WrittenFiles(TypedDict):
    """The files that were made, paths from the current folder."""

    files: list[str]


class CheckedStack(TypedDict):
    """The stack file as it is understood."""

    stack: str
    type: str


class Rules(TypedDict):
    """Rules of the check, explained."""

    rules: list[Object]


class Change(TypedDict):
    """What happens, or would, to one resource."""

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
    """`complete` is false where the price of something is not known."""

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
    """What `up` would do, or did; `price_per_hour` is of one node, `cost` of everything."""

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
    """One thing that exists."""

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
    """One try at a job, and why there was it."""

    number: int
    zone: str
    node: str
    cause: Object
    started: str
    started_by: str


class Job(TypedDict):
    """A job as its record has it; `exit_code` is its own, null while it runs."""

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
    """A job with its workers' states and its progress."""

    worker_states: dict[str, str]
    progress: Object
    last_log_at: str | None


class Advice(TypedDict):
    text: str
    command: str


class Status(TypedDict):
    """What exists of a stack and how its jobs fare."""

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
    """What is left after `down`; `billable` is what costs money."""

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
    """What some stack left behind in a project."""

    project: str
    per_hour: float
    complete: bool
    stacks: list[OrphanStack]


class JobSubmission(TypedDict):
    """`job_exit_code` is the job's own: the envelope's `exit_code` may be one of tpuctl's."""

    job: str
    output: str
    state: NotRequired[str | None]
    job_exit_code: NotRequired[int | None]
    remaining: NotRequired[list[RemainingResource]]


class Logs(TypedDict):
    """Of what job the log was shown; followed to the end, also how it ended."""

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
    """Why an earlier attempt ended."""

    attempt: int
    kind: str
    name: str
    cause: str
    worker: int | None
    detail: str
    at: str


class JobExplanation(TypedDict):
    """`failure` is null of a job that runs or succeeded."""

    job: str
    state: str
    exit_code: int | None
    attempt: int
    machines_queried: bool
    failure: Failure | None
    previous_failures: list[PreviousFailure]


class MessageExplanation(TypedDict):
    """What a message that was handed over means."""

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
    """`curves` are points of step and value by name; `file` is the page, where one was written."""

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
    """How a command ended on each worker."""

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
    """One of `prices`, `offers`, `machines`, `disks` and `storage` holds the rows."""

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
    """The quota that nodes of a type need, of all types where `type` is null."""

    type: str | None
    limits: list[Object]
    live: Object | None


class LocalCloud(TypedDict):
    url: str
    pace: str
    folder: str
    pid: int


class LocalStatus(TypedDict):
    """Only `running`, where it does not."""

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
    """What `doctor` found about one thing."""

    check: str
    state: str
    message: str
    hint: str
    command: str
    requires: str


class Diagnosis(TypedDict):
    """What is ready and what is not, in the order to mend it."""

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


# By command. A list has more than one meaning: which, the options of the command say.
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
