"""The stack file's fields, types and defaults; its JSON schema for editors comes from here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from tpuctl.model.names import STACK_NAME

__all__ = [
    "NOT_YET",
    "AccessSection",
    "BucketSection",
    "JobSection",
    "LimitsSection",
    "NetworkSection",
    "ProjectSection",
    "StackFile",
    "TpuSection",
]

Name = Annotated[str, StringConstraints(pattern=f"^{STACK_NAME}$")]
ProjectId = Annotated[
    str, StringConstraints(pattern=r"^([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$")
]
Port = Annotated[str, StringConstraints(pattern=r"^(http|https|(tcp|udp):\d{1,5})$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProjectSection(Section):
    id: ProjectId = Field(description="The Google Cloud project everything is made in.")


class TpuSection(Section):
    kind: Literal["vm"] = Field("vm", description="A TPU VM: workers that carry the chips.")
    type: str = Field(description="The accelerator type, as `tpuctl types` lists them.")
    runtime: str = Field("auto", description="Software version; auto: the newest TensorFlow.")
    zones: tuple[str, ...] = Field(
        (), description="Where to make the node: the first is used. Empty: the cheapest zone."
    )
    capacity: Literal["on-demand", "spot"] = Field(
        "on-demand", description="spot is cheaper and may be taken away at any time."
    )
    service_account: str | None = Field(
        None, description="E-mail of the account the workers act as; made for the stack if empty."
    )


class BucketSection(Section):
    name: str = Field("auto", description="auto: the stack's and the project's names joined.")
    location: str = Field("auto", description="auto: the region of the node's zone.")
    keep: bool = Field(True, description="Whether `down` leaves the bucket.")
    allow_egress: bool = Field(
        False, description="Accept a bucket outside the node's region, whose traffic is charged."
    )


class NetworkSection(Section):
    name: str = Field("auto", description="auto: `default`, else one made for the stack.")
    ssh: Literal["external", "internal"] = Field(
        "external", description="Whether workers have external addresses."
    )
    allow: tuple[Port, ...] = Field((), description="More to let in: http, https, tcp:6006.")
    allow_from: tuple[str, ...] = Field(
        (), description="Address ranges let in; empty: the address this machine is seen under."
    )
    tags: tuple[str, ...] = Field((), description="Further network tags of the workers.")


class AccessSection(Section):
    ssh_key: str = Field("auto", description="A private key file; auto: one of tpuctl's own.")
    user: str = Field("auto", description="The user on the workers; auto: your local name.")


class LimitsSection(Section):
    max_hours: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="A job is stopped after so many hours, with exit code 124.",
    )


class JobSection(Section):
    requirements: str | None = Field(
        "requirements.txt", description="Installed on each worker when the file is there."
    )
    include: tuple[str, ...] = Field((), description="Patterns shipped though ignored.")
    exclude: tuple[str, ...] = Field((), description="Patterns not shipped.")
    env: dict[Variable, str] = Field(default_factory=dict, description="Environment of the script.")
    workers: Literal["auto", "all"] | tuple[int, ...] = Field(
        "auto", description="Which workers start the script; auto: worker 0 for TensorFlow slices."
    )


class StackFile(Section):
    """One `tpuctl.yaml`."""

    stack: Name | None = Field(None, description="Prefix of every name; empty: the folder's name.")
    project: ProjectSection
    tpu: TpuSection
    bucket: BucketSection = BucketSection()
    network: NetworkSection = NetworkSection()
    access: AccessSection = AccessSection()
    limits: LimitsSection = LimitsSection()
    job: JobSection = JobSection()


# Keys of the contract that this version does not act on: refused by name, never ignored, since
# an ignored limit costs money.
NOT_YET: frozenset[str] = frozenset(
    {
        "controller",
        "job.retries",
        "job.secrets",
        "limits.idle",
        "limits.max_cost",
        "project.billing_account",
        "project.create",
        "project.parent",
        "tpu.queue",
    }
)
