"""What `data` is for `doctor`, machines, the catalogue and the local cloud; see `answers`."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict

__all__ = [
    "Commanded",
    "Copied",
    "Diagnosis",
    "Forwarded",
    "Limits",
    "LocalCloud",
    "LocalReset",
    "LocalStatus",
    "LocalStopped",
    "Prices",
    "Released",
    "Role",
    "RuntimesOffered",
    "Token",
    "TypesOffered",
    "ZonesOffered",
]

Object = dict[str, Any]


class Ended(TypedDict):
    worker: int
    exit_code: int


class Commanded(TypedDict):
    """How a command ended on each worker."""

    workers: list[Ended]


class Copy(TypedDict):
    worker: int
    files: int
    bytes: int


class Copied(TypedDict):
    copied: list[Copy]


class Port(TypedDict):
    port: int
    local_port: int
    url: str


class Forwarded(TypedDict):
    worker: int
    ports: list[Port]


class TypesOffered(TypedDict):
    """`read` is the day of the catalogue; `live` what Google answered, where it was asked."""

    read: str
    types: list[Object]
    live: Object | None


class ZonesOffered(TypedDict):
    read: str
    zones: list[Object]
    live: Object | None


class RuntimesOffered(TypedDict):
    read: str
    runtimes: list[Object]
    live: Object | None


class Prices(TypedDict):
    """One of `prices`, `offers`, `machines`, `disks` and `storage` holds the rows."""

    read: str
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


class LocalStopped(TypedDict):
    stopped: bool


class LocalReset(TypedDict):
    folder: str


class Token(TypedDict):
    member: str
    token: str


class Released(TypedDict):
    released: int


class Finding(TypedDict):
    """What `doctor` found about one thing."""

    check: str
    state: str
    told: str
    hint: str
    command: str
    after: str


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
    shown: list[str]
    grants: list[Object]
