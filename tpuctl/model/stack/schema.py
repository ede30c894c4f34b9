"""The stack file's fields, types and defaults; source of its JSON schema for editors."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from tpuctl.catalog.prices import Capacity
from tpuctl.catalog.type_names import type_named
from tpuctl.model.jobs.attempt import Retries
from tpuctl.model.jobs.hang import JobLimits
from tpuctl.model.stack.secret_sources import FORMS, SECRET, SOURCE
from tpuctl.model.text.duration import DURATION
from tpuctl.model.text.names import BUCKET_NAME, STACK_NAME, USER_NAME, bucket_name_problem

Name = Annotated[str, StringConstraints(pattern=f"^{STACK_NAME}$")]
ProjectId = Annotated[
    str, StringConstraints(pattern=r"^([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$")
]
Port = Annotated[str, StringConstraints(pattern=r"^(http|https|(tcp|udp):\d{1,5})$")]
SecretSource = Annotated[str, StringConstraints(pattern=SOURCE)]
SecretVersion = Annotated[str, StringConstraints(pattern=SECRET)]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


BillingAccount = Annotated[str, StringConstraints(pattern=r"^[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}$")]
Parent = Annotated[str, StringConstraints(pattern=r"^(organizations|folders)/[0-9]+$")]
Duration = Annotated[str, StringConstraints(pattern=DURATION)]
LabelKey = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
LabelValue = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{0,63}$")]
UserName = Annotated[str, StringConstraints(pattern=USER_NAME)]
Tag = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")]
NoProxyHost = Annotated[str, StringConstraints(pattern=r"^[^\s,;/]+$")]
RESOURCE_NAME = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
PROJECT_PATH = r"projects/([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]"
ResourceName = Annotated[str, StringConstraints(pattern=f"^{RESOURCE_NAME}$")]
# A name, or a path, which may be another project's.
NetworkName = Annotated[
    str, StringConstraints(pattern=rf"^({PROJECT_PATH}/global/networks/)?{RESOURCE_NAME}$")
]
SubnetworkName = Annotated[
    str,
    StringConstraints(
        pattern=rf"^({PROJECT_PATH}/regions/[a-z0-9-]+/subnetworks/)?{RESOURCE_NAME}$"
    ),
]
# Parts of resource names in Google's APIs: no leading dot, no slash.
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
KmsKey = Annotated[
    str,
    StringConstraints(
        pattern=r"^projects/([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]/locations/[a-z0-9-]+"
        r"/keyRings/[A-Za-z0-9_-]{1,63}/cryptoKeys/[A-Za-z0-9_-]{1,63}$"
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


def _key_file(value: str) -> str:
    from tpuctl.model.text.redaction import without_keys

    is_public = re.match(r"(ssh|ecdsa|sk)-\S+\s+AAAA", value.strip()) is not None
    if is_public or without_keys(value) != value or len(value) > MAX_PATH_LENGTH:
        raise ValueError("a key instead of a path")
    return value


MAX_PATH_LENGTH = 4096  # PATH_MAX of Linux
KeyFile = Annotated[str, AfterValidator(_key_file)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class ProjectSection(Section):
    id: ProjectId = Field(description="ID of the Google Cloud project of all resources.")
    create: bool = Field(False, description="Create the project if it does not exist.")
    billing_account: BillingAccount | None = Field(
        None, description="Billing account to link if the project has none: XXXXXX-XXXXXX-XXXXXX."
    )
    parent: Parent | None = Field(
        None, description="Parent of a new project: organizations/N or folders/N."
    )


def _short_for(key: str) -> Callable[[Any], Any]:
    """A text in place of a section is short for this key of it."""
    return lambda value: {key: value} if isinstance(value, str) else value


def _or_text(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"$ref": schema.pop("$ref")}, {"type": "string"}]


def _or_string(schema: dict[str, Any]) -> None:
    schema["anyOf"].append({"type": "string"})


def _with_spot(value: Any, tpu: Any) -> Any:
    """A TPU's section with the capacity that `spot: true` in `value` is short for.

    Contradictions are left to the stack rules.
    """
    if not (isinstance(value, dict) and value.get("spot") is True and isinstance(tpu, dict)):
        return tpu
    return {"capacity": "preemptible" if tpu.get("kind") == "node" else "spot", **tpu}


def _with_first_type(tpu: Any) -> Any:
    """A TPU's section with the type of its first alternative, unless it has one."""
    if not isinstance(tpu, dict) or "type" in tpu or not isinstance(tpu.get("any_of"), list):
        return tpu
    alternatives = [_short_for("type")(value) for value in tpu["any_of"]]
    types = (each["type"] for each in alternatives if isinstance(each, dict) and "type" in each)
    name = next(types, None)
    return tpu if name is None else {**tpu, "type": name}


def _type_or_alternatives(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": ["any_of"]}]


def _canonical_type(name: str) -> str:
    accelerator = type_named(name)
    return accelerator.name if accelerator is not None else name


TypeName = Annotated[str, AfterValidator(_canonical_type)]
Seller = Literal["auto", "tpu", "compute"]


def _date_as_text(value: Any) -> Any:
    """YAML parses an unquoted date as a date."""
    return value.isoformat() if isinstance(value, date) else value


def _has_zone(value: str) -> str:
    """Reject invalid dates, and times without a time zone."""
    if not re.fullmatch(DURATION, value) and datetime.fromisoformat(value).tzinfo is None:
        raise ValueError("a time without a time zone")
    return value


Deadline = Annotated[
    str,
    BeforeValidator(_date_as_text),
    StringConstraints(pattern=rf"{DURATION}|^[0-9]{{4}}-[0-9T:.-]+(Z|[+-][0-9:]+)$"),
    AfterValidator(_has_zone),
]
Reservation = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9-]+$")]
SharedReservation = Annotated[
    str,
    StringConstraints(
        pattern=r"^(projects/[a-z0-9.:-]+/reservations/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"
    ),
]


class QueueSection(Section):
    valid_until: Deadline | None = Field(
        None, description="Deadline for capacity: a duration (6h) or a time (2026-01-31T18:00:00Z)."
    )
    provisioning_timeout: Duration | None = Field(
        "1h",
        description="Give up a request that stays in state PROVISIONING for this time; null: "
        "never.",
    )
    run_for: Duration | None = Field(
        None, description="Run duration of the nodes; required for flex-start (at most 7d)."
    )
    guaranteed: bool = Field(False, description="Request capacity that is never preempted.")
    reservation: Reservation | None = Field(None, description="Name of the reservation to use.")
    nodes: int = Field(1, ge=1, le=64, description="Number of nodes in the request.")


def _queue(value: Any) -> Any:
    """`true` means a queue with default settings, `false` none."""
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


QueueOrBoolean = Annotated[QueueSection | None, BeforeValidator(_queue)]


def _or_boolean(schema: dict[str, Any]) -> None:
    schema["anyOf"].append({"type": "boolean"})


class DataDisk(Section):
    name: ResourceName | None = Field(
        None, description="Name of an existing disk in the node's zone; empty: create a disk."
    )
    size_gb: int | None = Field(None, ge=10, description="Size of the disk to create, in GB.")
    type: Literal["pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced"] = Field(
        "pd-balanced", description="Type of the disk to create."
    )
    mode: Literal["read-write", "read-only"] = Field(
        "read-write",
        description="Access mode; nodes with several workers support only read-only disks.",
    )


class BootDiskSection(Section):
    size_gb: int = Field(100, ge=10, le=65536, description="Size of the boot disk, in GB.")
    type: Literal["auto", "pd-balanced", "hyperdisk-balanced"] = Field(
        "auto", description="Type of the boot disk; auto: what the machine type supports."
    )


class Alternative(Section):
    """What an alternative sets instead of `tpu`."""

    type: TypeName | None = Field(None, description="Instead of `tpu.type`.")
    topology: str | None = Field(None, description="Instead of `tpu.topology`.")
    runtime: str | None = Field(None, description="Instead of `tpu.runtime`.")
    zones: tuple[str, ...] | None = Field(None, description="Instead of `tpu.zones`.")
    capacity: Capacity | None = Field(None, description="Instead of `tpu.capacity`.")
    spot: bool = Field(
        False,
        exclude=True,
        description="`true` is short for `capacity: spot`, `false` for `capacity: on-demand`.",
    )
    reservation: SharedReservation | None = Field(None, description="Instead of `tpu.reservation`.")
    queue: QueueOrBoolean = Field(
        None, description="Instead of `tpu.queue`.", json_schema_extra=_or_boolean
    )
    api: Seller | None = Field(None, description="Instead of `tpu.api`.")
    slices: int | None = Field(None, ge=1, le=64, description="Instead of `tpu.slices`.")

    @model_validator(mode="before")
    @classmethod
    def _spot_capacity(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("spot") not in (True, False):
            return value
        return {"capacity": "spot" if value["spot"] else "on-demand", **value}


class TpuSection(Section):
    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, json_schema_extra=_type_or_alternatives
    )

    kind: Literal["vm", "node"] = Field(
        "vm",
        description="vm: TPU VM, workers with TPU chips. node: TPU node, a remote TPU with a "
        "controller.",
    )
    api: Seller | None = Field(
        None,
        description="Who sells the TPU. tpu: the Cloud TPU API. compute: Compute Engine. auto: "
        "both, in the order that `tpuctl plan` shows. Empty: the Cloud TPU API, or Compute Engine "
        "for types that only it offers.",
    )
    slices: int = Field(
        1, ge=1, le=64, description="Number of slices that run each job together (multislice)."
    )
    type: TypeName = Field(
        description="Accelerator type, such as v5litepod-8 or v5e-8; list them with `tpuctl "
        "types`. A generation, such as v6e, is its smallest type. Required, unless alternatives "
        "have types: then the first."
    )
    topology: str | None = Field(
        None, description="Topology of the slice, such as 2x2x4; empty: the type's default."
    )
    runtime: str = Field(
        "auto",
        description="Software version; auto: the newest TensorFlow, or the base version for "
        "another `job.framework`. For kind: node, a version such as 2.12.0 or pytorch-2.0.",
    )
    zones: tuple[str, ...] = Field(
        (),
        description="Zones to try in order, until one has capacity. Empty: the cheapest zone.",
    )
    capacity: Capacity = Field(
        "on-demand", description="Capacity type; spot is cheaper and may be preempted at any time."
    )
    spot: bool = Field(
        False,
        exclude=True,
        description="`true` is short for `capacity: spot`, for TPU nodes preemptible.",
    )
    reservation: SharedReservation | None = Field(
        None,
        description="Reservation to use, with capacity: reserved: its name, or "
        "projects/PROJECT/reservations/NAME if another project shares it.",
    )
    queue: QueueOrBoolean = Field(
        None,
        description="Create nodes by a queued resource, which waits for capacity: true, or "
        "settings.",
        json_schema_extra=_or_boolean,
    )
    service_account: ServiceAccountEmail | None = Field(
        None, description="Email of the workers' service account; empty: create one for the stack."
    )
    metadata: dict[MetadataKey, str] = Field(
        default_factory=dict, description="Additional metadata of the workers."
    )
    startup_script: str | None = Field(
        None, description="Script file to run as root at each start of a worker."
    )
    boot_disk: BootDiskSection = Field(
        BootDiskSection(), description="Boot disk of each worker on Compute Engine."
    )
    secure_boot: bool = Field(
        False,
        description="Create the workers as Shielded VMs with Secure Boot, as the policy "
        "compute.requireShieldedVm demands for machines of Compute Engine.",
    )
    data_disks: tuple[DataDisk, ...] = Field((), description="Disks attached to the workers.")
    any_of: tuple[
        Annotated[
            Alternative, BeforeValidator(_short_for("type")), Field(json_schema_extra=_or_text)
        ],
        ...,
    ] = Field(
        (),
        max_length=16,
        description="TPUs to try in order, until one has capacity: their types, or settings. What "
        "an alternative leaves out is that of `tpu`.",
    )
    prefer: Literal["order", "price", "capacity"] = Field(
        "order",
        description="Which alternative and zone to try first. order: as listed. price: the "
        "cheapest TPU. capacity: where your last request was granted this week, then where none "
        "was refused.",
    )
    deadline: Deadline | None = Field(
        None,
        description="When to stop looking for a TPU, through all alternatives and zones: a "
        "duration (12h) from the start of `up` or of a job's restart, or a time.",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        return _with_first_type(_with_spot(value, value))


class ControllerSection(Section):
    machine_type: MachineType = Field(
        "auto",
        description="Machine type; auto: n1-standard-1, else the smallest similar type in the "
        "region.",
    )
    disk_gb: int = Field(50, ge=10, le=65536, description="Size of the boot disk, in GB.")
    disk_type: Literal["pd-standard", "pd-balanced", "pd-ssd"] = Field(
        "pd-standard", description="Type of the boot disk."
    )
    image: Image = Field(
        "auto",
        description="Image family, PROJECT/FAMILY or PROJECT/images/IMAGE; auto: for a TPU node, "
        "the "
        "image with its TensorFlow, else ubuntu-2204-lts; for a TPU VM, ubuntu-2404-lts-amd64.",
    )
    secure_boot: bool = Field(
        False,
        description="Create it as a Shielded VM with Secure Boot, as the policy "
        "compute.requireShieldedVm demands.",
    )
    scopes: Literal["auto"] | tuple[str, ...] = Field(
        "auto", description="OAuth scopes of the service account; auto: cloud-platform."
    )


class BucketSection(Section):
    name: BucketName = Field("auto", description="Bucket name; auto: STACK-PROJECT.")
    location: Location = Field(
        "auto", description="Bucket location; auto: the region of the node's zone."
    )
    keep: bool = Field(True, description="Keep the bucket on `down`.")
    allow_egress: bool = Field(
        False, description="Allow a bucket outside the node's region, with charges for traffic."
    )


class NetworkSection(Section):
    name: NetworkName = Field(
        "auto",
        description="Network; auto: `default` if it exists, else a new network for the stack. That "
        "of a host project (Shared VPC): projects/HOST/global/networks/NAME.",
    )
    subnetwork: SubnetworkName | None = Field(
        None,
        description="Subnetwork of the workers, by name or as projects/HOST/regions/REGION/"
        "subnetworks/NAME; empty: the network's default in the region.",
    )
    node_range: str = Field(
        "auto",
        description="Address range for kind: node: auto (find a free range), a range such as "
        "10.1.2.0/29, or service-networking.",
    )
    ssh: Literal["external", "internal", "iap"] = Field(
        "external",
        description="How to connect with SSH. external: to the machines' external addresses, only "
        "from "
        "`allow_from`. internal: to internal addresses, without external ones. iap: through "
        "Identity-Aware Proxy, without external addresses.",
    )
    nat: bool = Field(
        False,
        description="Create Cloud NAT in the TPU's region, through which machines without external "
        "addresses reach the internet. `down` deletes it.",
    )
    allow: tuple[Port, ...] = Field(
        (), description="Additional ports to allow: http, https, tcp:6006."
    )
    allow_from: tuple[str, ...] = Field(
        (), description="IPv4 ranges to allow; empty: this machine's public address."
    )
    tags: tuple[Tag, ...] = Field((), description="Additional network tags of the workers.")
    proxy: str | None = Field(
        None,
        description="Proxy through which jobs, notifications, and a controller reach the internet: "
        "http://HOST:PORT. Google's APIs are reached without it.",
    )
    no_proxy: tuple[NoProxyHost, ...] = Field(
        (),
        description="Hosts and domains (.example.com) that jobs reach without the proxy, in "
        "addition to Google's APIs, the metadata server, and the workers.",
    )
    ca: str | None = Field(
        None,
        description="File with certificates (PEM) of a company's authority that programs on the "
        "machines trust, in addition to the system's; or the certificates themselves.",
    )


class EncryptionSection(Section):
    kms_key: KmsKey | None = Field(
        None,
        description="Cloud KMS key that encrypts the bucket, data disks, and boot disks that `up` "
        "creates: projects/P/locations/L/keyRings/R/cryptoKeys/K. Empty: Google's own keys.",
    )


class AccessSection(Section):
    ssh_key: KeyFile = Field("auto", description="Private key file; auto: tpuctl's key.")
    user: UserName = Field("auto", description="User on the workers; auto: your local user name.")


MONTHLY_BUDGET = r"^\$?\d+(\.\d+)?/month$"


class LimitsSection(Section):
    max_hours: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Maximum hours with a TPU, after which it is deleted; its job is stopped "
        "first, with exit code 124. Counts all nodes since the first `up`; `up --new-limits` "
        "counts from zero.",
    )
    max_cost: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Maximum cost of all machines and disks since the first `up` in US dollars, "
        "after which the machines are deleted; `up --new-limits` counts from zero.",
    )
    budget: str | None = Field(
        None,
        pattern=MONTHLY_BUDGET,
        description="Maximum cost per calendar month (UTC) of all stacks of the project that set a "
        "budget, together, in US dollars: 300/month. Then their machines are deleted.",
    )
    idle: Duration | None = Field(
        "30m",
        description="Delete the node after this time without a job or login; null: never.",
    )


class RetriesSection(Retries):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class JobLimitsSection(JobLimits):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class JobSection(Section):
    framework: Literal["auto", "tensorflow", "jax", "torch", "other"] = Field(
        "auto",
        description="Framework, which selects the runtime and the workers; auto: from the "
        "requirements and the imports of the scripts in the stack's folder, else tensorflow.",
    )
    python: str = Field(
        "auto",
        min_length=1,
        description="Python of the job: image (the machine's), or a version or range that the job "
        "brings, such as 3.12 or >=3.12,<3.14. auto: what the script's metadata (PEP 723), "
        ".python-version, uv.lock or pyproject.toml ask for, else the image's.",
    )
    requirements: str | None = Field(
        "auto",
        description="Requirements to install on each worker: a lock (uv.lock, pylock.toml), a "
        "requirements file, or a pyproject.toml; with extras and dependency groups of a project: "
        "uv.lock[tpu], pyproject.toml[tpu]. auto: the script's metadata (PEP 723), uv.lock, "
        "pylock.toml, requirements.txt, or pyproject.toml, the first that exists; null: none.",
    )
    wheels: str | None = Field(
        "auto",
        description="Folder of wheels to install from, without a package index. auto: `wheels`, if "
        "it "
        "has any; null: none.",
    )
    setup: str | None = Field(
        None,
        min_length=1,
        description="Shell command to run before installing requirements, once per machine and "
        "content.",
    )
    cache: bool = Field(
        True,
        description="Keep installed requirements and JAX's compiled programs in the bucket, for "
        "other workers, later attempts, and later jobs.",
    )
    include: tuple[str, ...] = Field(
        (),
        description="Patterns of ignored files to upload anyway; files with credentials only by "
        "their own names.",
    )
    exclude: tuple[str, ...] = Field((), description="Patterns of files not to upload.")
    env: dict[Variable, str] = Field(
        default_factory=dict, description="Environment variables of the script."
    )
    secrets: dict[Variable, SecretSource] = Field(
        default_factory=dict,
        description=f"Environment variables whose values are never stored, by source. {FORMS}",
    )
    workers: Literal["auto", "all"] | tuple[int, ...] = Field(
        "auto",
        description="Workers that run the script; auto: worker 0 for TensorFlow slices, else all.",
    )
    retries: RetriesSection = Field(
        RetriesSection(),
        description="Maximum restarts by cause: preemption, infrastructure (a machine or service), "
        "failure (of the script), requested (by the script, with exit code 75).",
    )
    resume: Literal["same", "any"] = Field(
        "same",
        description="Where a restarted job may run, of `tpu.any_of`. same: on alternatives of the "
        "same type and number of slices. any: on all, which must have equally many workers; its "
        "checkpoints must fit each.",
    )
    limits: JobLimitsSection = JobLimitsSection()


NotifyEvent = Literal["granted", "preempted", "recovered", "hung", "ended", "limit", "failed"]


class NotifySection(Section):
    url: SecretVersion = Field(
        description="Secret with the webhook's URL: secret:NAME, secret:NAME@VERSION, or "
        "projects/P/secrets/NAME. `tpuctl notify test` sends a test message."
    )
    on: tuple[NotifyEvent, ...] = Field(
        get_args(NotifyEvent),
        description="Events to report. granted: machines are up. preempted, recovered: of a job, "
        "which runs again. hung: it makes no progress. ended: it succeeded. failed: an attempt "
        "failed. limit: machines are deleted at a limit.",
    )
    format: Literal["auto", "slack", "discord", "google-chat", "ntfy", "json"] = Field(
        "auto", description="Format of messages; auto: by the URL's host, else json."
    )

    @model_validator(mode="before")
    @classmethod
    def _name_of_on(cls, value: Any) -> Any:
        """The key `on` is a boolean in YAML 1.1."""
        if not isinstance(value, dict):
            return value
        return {"on" if key is True else key: item for key, item in value.items()}


class NamesSection(Section):
    prefix: Annotated[str, StringConstraints(pattern=r"^([a-z][-a-z0-9]{0,24})?$")] = Field(
        "",
        description="What the stack's name, and so the names of its resources, begin with, as a "
        "company may demand: ml-.",
    )


class StackFile(Section):
    """The contents of `tpuctl.yaml`."""

    stack: Name | None = Field(
        None, description="Stack name, the prefix of resource names; empty: the folder's name."
    )
    names: NamesSection = NamesSection()
    project: Annotated[ProjectSection, BeforeValidator(_short_for("id"))] = Field(
        description="Google Cloud project: its ID, or settings.", json_schema_extra=_or_text
    )
    labels: Annotated[dict[LabelKey, LabelValue], Field()] = Field(
        default_factory=dict, description="Additional labels of all resources that support labels."
    )
    tpu: Annotated[TpuSection, BeforeValidator(_short_for("type"))] = Field(
        description="TPU: its type, or settings.", json_schema_extra=_or_text
    )
    spot: bool = Field(
        False, exclude=True, description="`true` is short for `tpu: {capacity: spot}`."
    )
    controller: ControllerSection | None = Field(
        None, description="Controller VM, which drives a TPU node; {} adds one to a TPU VM."
    )
    bucket: BucketSection = BucketSection()
    network: NetworkSection = NetworkSection()
    encryption: EncryptionSection = EncryptionSection()
    access: AccessSection = AccessSection()
    limits: LimitsSection = LimitsSection()
    job: JobSection = JobSection()
    notify: Annotated[NotifySection | None, BeforeValidator(_short_for("url"))] = Field(
        None,
        description="Webhook that machines call, also when your computer is off: its secret, or "
        "settings.",
        json_schema_extra=_or_string,
    )

    @model_validator(mode="before")
    @classmethod
    def _spot_tpu(cls, value: Any) -> Any:
        if isinstance(value, dict) and "tpu" in value:
            return {**value, "tpu": _with_spot(value, _short_for("type")(value["tpu"]))}
        return value
