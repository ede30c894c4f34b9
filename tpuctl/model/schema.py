"""The stack file's fields, types and defaults; its JSON schema for editors comes from here."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from tpuctl.model.attempt import Retries
from tpuctl.model.duration import DURATION
from tpuctl.model.names import BUCKET_NAME, STACK_NAME, USER_NAME, bucket_name_problem
from tpuctl.model.secret_sources import FORMS, SOURCE

__all__ = [
    "AccessSection",
    "BucketSection",
    "ControllerSection",
    "DataDisk",
    "JobSection",
    "LimitsSection",
    "NetworkSection",
    "ProjectSection",
    "QueueSection",
    "RetriesSection",
    "StackFile",
    "TpuSection",
]

Name = Annotated[str, StringConstraints(pattern=f"^{STACK_NAME}$")]
ProjectId = Annotated[
    str, StringConstraints(pattern=r"^([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$")
]
Port = Annotated[str, StringConstraints(pattern=r"^(http|https|(tcp|udp):\d{1,5})$")]
SecretSource = Annotated[str, StringConstraints(pattern=SOURCE)]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


BillingAccount = Annotated[str, StringConstraints(pattern=r"^[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}$")]
Parent = Annotated[str, StringConstraints(pattern=r"^(organizations|folders)/[0-9]+$")]
Duration = Annotated[str, StringConstraints(pattern=DURATION)]
LabelKey = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
LabelValue = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{0,63}$")]
UserName = Annotated[str, StringConstraints(pattern=USER_NAME)]
Tag = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")]
ResourceName = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")]
# Parts of resource names in Google's APIs: none of them begins with a dot or holds a slash.
ServiceAccountEmail = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]*@([a-z0-9-]+\.)+gserviceaccount\.com$")
]
MachineType = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Location = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9-]*$")]
Image = Annotated[
    str,
    StringConstraints(
        pattern=r"^(https://)?[A-Za-z0-9][A-Za-z0-9:._-]*(/[A-Za-z0-9][A-Za-z0-9:._-]*)*$"
    ),
]
MetadataKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,127}$")]


def _bucket_name(value: str) -> str:
    if problem := bucket_name_problem(value):
        raise ValueError(problem)
    return value


BucketName = Annotated[
    str,
    StringConstraints(pattern=BUCKET_NAME, min_length=3, max_length=222),
    AfterValidator(_bucket_name),
]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProjectSection(Section):
    id: ProjectId = Field(description="The Google Cloud project everything is made in.")
    create: bool = Field(False, description="Make the project if there is none of that id.")
    billing_account: BillingAccount | None = Field(
        None, description="Linked to the project when it has none: XXXXXX-XXXXXX-XXXXXX."
    )
    parent: Parent | None = Field(
        None, description="Where a new project is made: organizations/N or folders/N."
    )


def _date_as_text(value: Any) -> Any:
    """YAML reads an unquoted date as one."""
    return value.isoformat() if isinstance(value, date) else value


def _has_zone(value: str) -> str:
    """Refuses days that are none, and times of nobody knows where."""
    if not re.fullmatch(DURATION, value) and datetime.fromisoformat(value).tzinfo is None:
        raise ValueError("a time without its zone")
    return value


Deadline = Annotated[
    str,
    BeforeValidator(_date_as_text),
    StringConstraints(pattern=rf"{DURATION}|^[0-9]{{4}}-[0-9T:.-]+(Z|[+-][0-9:]+)$"),
    AfterValidator(_has_zone),
]
Reservation = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9-]+$")]


class QueueSection(Section):
    valid_until: Deadline | None = Field(
        None, description="When to stop waiting: a duration (6h) or a time (2026-01-31T18:00:00Z)."
    )
    run_for: Duration | None = Field(
        None, description="Run duration of the nodes; required for flex-start (at most 7d)."
    )
    guaranteed: bool = Field(False, description="Request capacity that is not preempted.")
    reservation: Reservation | None = Field(None, description="Name of the reservation to use.")
    nodes: int = Field(1, ge=1, le=64, description="Number of nodes in one request.")


def _queue(value: Any) -> Any:
    """`true` asks for a queue with its defaults, `false` for none."""
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


def _or_boolean(schema: dict[str, Any]) -> None:
    schema["anyOf"].append({"type": "boolean"})


class DataDisk(Section):
    name: ResourceName | None = Field(
        None, description="Name of an existing disk in the node's zone; empty: a disk is created."
    )
    size_gb: int | None = Field(
        None, ge=10, description="Size of a disk created for the stack, in GB."
    )
    type: Literal["pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced"] = Field(
        "pd-balanced", description="Type of a disk created for the stack."
    )
    mode: Literal["read-write", "read-only"] = Field(
        "read-write", description="Nodes with several workers support read-only disks only."
    )


class TpuSection(Section):
    kind: Literal["vm", "node"] = Field(
        "vm",
        description="vm: workers that carry the chips. node: a remote TPU beside a controller.",
    )
    type: str = Field(description="The accelerator type, as `tpuctl types` lists them.")
    topology: str | None = Field(
        None, description="The shape of a slice, such as 2x2x4; empty: the type's usual one."
    )
    runtime: str = Field(
        "auto",
        description="Software version; auto: the newest TensorFlow. For a node a version such as "
        "2.12.0 or pytorch-2.0.",
    )
    zones: tuple[str, ...] = Field(
        (),
        description="Where to make the node, in order: the next is tried when one has no "
        "capacity. Empty: the cheapest zone.",
    )
    capacity: Literal["on-demand", "spot", "preemptible", "reserved", "flex-start"] = Field(
        "on-demand", description="spot is cheaper and may be taken away at any time."
    )
    queue: Annotated[QueueSection | None, BeforeValidator(_queue)] = Field(
        None,
        description="Ask through a queued resource, which waits for capacity: true, or how.",
        json_schema_extra=_or_boolean,
    )
    service_account: ServiceAccountEmail | None = Field(
        None, description="E-mail of the account the workers act as; made for the stack if empty."
    )
    metadata: dict[MetadataKey, str] = Field(
        default_factory=dict, description="Further metadata of the workers."
    )
    startup_script: str | None = Field(
        None, description="A script file that runs as root at each start of a worker."
    )
    data_disks: tuple[DataDisk, ...] = Field((), description="Disks attached to the workers.")


class ControllerSection(Section):
    machine_type: MachineType = Field(
        "auto",
        description="The controller's machine type; auto: n1-standard-1, else the smallest like "
        "it that the region offers.",
    )
    disk_gb: int = Field(50, ge=10, le=65536, description="Size of its boot disk, in GB.")
    disk_type: Literal["pd-standard", "pd-balanced", "pd-ssd"] = Field(
        "pd-standard", description="Type of its boot disk."
    )
    image: Image = Field(
        "auto",
        description="An image family, PROJECT/FAMILY or PROJECT/images/IMAGE; auto: the one with "
        "the node's TensorFlow, else ubuntu-2204-lts; beside a TPU VM ubuntu-2404-lts-amd64.",
    )
    scopes: Literal["auto"] | tuple[str, ...] = Field(
        "auto", description="OAuth scopes of its account; auto: cloud-platform."
    )


class BucketSection(Section):
    name: BucketName = Field(
        "auto", description="auto: the names of the stack and the project, joined."
    )
    location: Location = Field("auto", description="auto: the region of the node's zone.")
    keep: bool = Field(True, description="Whether `down` leaves the bucket.")
    allow_egress: bool = Field(
        False, description="Accept a bucket outside the node's region, whose traffic is charged."
    )


class NetworkSection(Section):
    name: ResourceName = Field("auto", description="auto: `default`, else one made for the stack.")
    subnetwork: ResourceName | None = Field(
        None, description="The subnetwork of the workers; empty: the region's own."
    )
    node_range: str = Field(
        "auto",
        description="For kind: node, its addresses: auto finds a free range, or 10.1.2.0/29, or "
        "service-networking.",
    )
    ssh: Literal["external", "internal", "iap"] = Field(
        "external",
        description="How SSH comes in. external: at the machines' external addresses, from "
        "`allow_from` alone. internal: at internal ones, they have no others. iap: through "
        "Identity-Aware Proxy, and they have no external addresses.",
    )
    allow: tuple[Port, ...] = Field((), description="More to let in: http, https, tcp:6006.")
    allow_from: tuple[str, ...] = Field(
        (), description="IPv4 ranges let in; empty: the address this machine is seen under."
    )
    tags: tuple[Tag, ...] = Field((), description="Further network tags of the workers.")


class AccessSection(Section):
    ssh_key: str = Field("auto", description="A private key file; auto: one of tpuctl's own.")
    user: UserName = Field("auto", description="The user on the workers; auto: your local name.")


class LimitsSection(Section):
    max_hours: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Maximum age of the node in hours, after which it is deleted; a job ends "
        "before, with exit code 124.",
    )
    max_cost: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Maximum cost of the node in US dollars, after which it is deleted.",
    )
    idle: Duration | None = Field(
        "30m",
        description="Delete the node after this long without a job or a login; null: never.",
    )


class RetriesSection(Retries):
    model_config = ConfigDict(frozen=True, extra="forbid")


class JobSection(Section):
    requirements: str | None = Field(
        "auto",
        description="Installed on each worker: a requirements file, or a pyproject.toml, with "
        "optional extras: pyproject.toml[tpu]. auto: requirements.txt, else pyproject.toml, "
        "when there is one; null: nothing.",
    )
    wheels: str | None = Field(
        "auto",
        description="A folder of wheels in what is shipped: installed from it, no index asked. "
        "auto: `wheels`, when it has some; null: none.",
    )
    setup: str | None = Field(
        None,
        min_length=1,
        description="A shell command that runs before anything is installed, once for each "
        "machine and content.",
    )
    include: tuple[str, ...] = Field((), description="Patterns shipped though ignored.")
    exclude: tuple[str, ...] = Field((), description="Patterns not shipped.")
    env: dict[Variable, str] = Field(default_factory=dict, description="Environment of the script.")
    secrets: dict[Variable, SecretSource] = Field(
        default_factory=dict,
        description="Further environment, whose values are written nowhere: where each comes "
        f"from. {FORMS}",
    )
    workers: Literal["auto", "all"] | tuple[int, ...] = Field(
        "auto", description="Which workers start the script; auto: worker 0 for TensorFlow slices."
    )
    retries: RetriesSection = Field(
        RetriesSection(),
        description="Maximum restarts of a job, by the cause of its failure: preemption, "
        "infrastructure (a machine or a service failed), failure (the script failed).",
    )


class StackFile(Section):
    """One `tpuctl.yaml`."""

    stack: Name | None = Field(None, description="Prefix of every name; empty: the folder's name.")
    project: ProjectSection
    labels: Annotated[dict[LabelKey, LabelValue], Field()] = Field(
        default_factory=dict, description="Further labels of everything that can carry labels."
    )
    tpu: TpuSection
    controller: ControllerSection | None = Field(
        None, description="The VM that drives a TPU node; {} has one beside a TPU VM too."
    )
    bucket: BucketSection = BucketSection()
    network: NetworkSection = NetworkSection()
    access: AccessSection = AccessSection()
    limits: LimitsSection = LimitsSection()
    job: JobSection = JobSection()
