"""A stack: its file read and checked, with every default resolved."""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from tpuctl.catalog import (
    AcceleratorType,
    Price,
    Runtime,
    accelerator_type,
    node_price,
    node_version,
    node_versions,
    region_of,
    runtime,
    runtime_for,
)
from tpuctl.errors import Diagnostic, InvalidStack, Usage
from tpuctl.model.names import STACK_NAME, USER_NAME, Names, bucket_name_problem
from tpuctl.model.schema import ControllerSection, QueueSection, StackFile
from tpuctl.model.secret_sources import Source, source_of
from tpuctl.model.stack_rules import default_machine_type, find_problems, resolve_zones
from tpuctl.model.stack_text import FORMATS, StackText, read_stack_text

__all__ = ["Stack", "load_stack", "minimal_stack", "read_stack", "slug"]

PLACEHOLDER_TYPE = "v2-8"


@dataclass(frozen=True)
class Stack:
    """A stack. Nothing here is "auto" any more, but for the network's name.

    One with problems can be looked at and taken away: what the file asks for that is not available
    is replaced by something that can.
    """

    path: Path
    file: StackFile
    names: Names
    accelerator: AcceleratorType
    runtime: Runtime  # for a TPU node: its version, with the TensorFlow in it
    zone: str  # the one in use: the first, until another is tried
    zones: tuple[str, ...]  # all that may be tried, in order
    bucket: str
    bucket_location: str
    user: str
    problems: tuple[Diagnostic, ...] = ()  # why it cannot be made

    def require_valid(self) -> None:
        """Raise InvalidStack with everything for which it cannot be made."""
        if self.problems:
            raise InvalidStack(self.problems)

    @property
    def name(self) -> str:
        return self.names.stack

    @property
    def project(self) -> str:
        return self.names.project

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def is_spot(self) -> bool:
        """Whether the node may be taken away at any time, at a lower price."""
        return self.file.tpu.capacity in ("spot", "preemptible")

    @property
    def is_node(self) -> bool:
        """Whether the TPU is a node of API v1, driven by a controller."""
        return self.file.tpu.kind == "node"

    @property
    def queue(self) -> QueueSection | None:
        """How to ask for the nodes through a queued resource; None to make them directly."""
        return self.file.tpu.queue

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the stack's nodes."""
        return self.names.nodes(self.queue.nodes if self.queue is not None else 1)

    @property
    def controller(self) -> ControllerSection | None:
        """The VM beside the TPU, of a machine type that the zone in use offers.

        A TPU node always has one.
        """
        default = ControllerSection() if self.is_node else None
        section = self.file.controller or default
        if section is None or section.machine_type != "auto":
            return section
        return section.model_copy(update={"machine_type": default_machine_type(self.region)})

    @property
    def has_limits(self) -> bool:
        """Whether anything is ever to be deleted by the machines themselves."""
        limits = self.file.limits
        return any(limit is not None for limit in (limits.idle, limits.max_hours, limits.max_cost))

    @property
    def has_recovery(self) -> bool:
        """Whether the controller goes on with jobs whose machines were taken away."""
        retries = self.file.job.retries
        return self.controller is not None and any(
            (retries.preemption, retries.infrastructure, retries.failure)
        )

    @property
    def labels(self) -> dict[str, str]:
        """Of everything that can carry labels."""
        return {**self.file.labels, **self.names.labels}

    @property
    def region(self) -> str:
        return region_of(self.zone)

    def in_zone(self, zone: str) -> Stack:
        """The same stack with its node in another zone. The bucket stays where it is."""
        return replace(self, zone=zone)

    @property
    def creates_service_account(self) -> bool:
        return self.file.tpu.service_account is None

    @property
    def service_account(self) -> str:
        return self.file.tpu.service_account or self.names.service_account_email

    @property
    def secrets(self) -> dict[str, Source]:
        """Where the values come from of variables that the stack file keeps secret."""
        return {
            name: source_of(name, text, self.project)
            for name, text in self.file.job.secrets.items()
        }

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Those of them in Secret Manager, as projects/P/secrets/NAME, each once."""
        return tuple(sorted({source.secret for source in self.secrets.values() if source.secret}))

    @property
    def has_only_project_secrets(self) -> bool:
        """Whether none of them is another project's."""
        prefix = f"projects/{self.project}/"
        return all(name.startswith(prefix) for name in self.secret_names)

    @property
    def price(self) -> Price | None:
        """Of one node, for an hour."""
        return node_price(self.accelerator, self.zone, capacity=self.file.tpu.capacity)

    @property
    def worker_count(self) -> int:
        """How many machines run its jobs: the workers of all nodes, or the controller."""
        return 1 if self.is_node else len(self.nodes) * self.accelerator.workers

    def job_workers(self) -> tuple[int, ...]:
        """The workers that start the script, numbered through all nodes in their order.

        Multi-host TensorFlow is driven from worker 0 alone; everything else starts everywhere.
        For a TPU node the one that starts it is the controller, whatever it drives.
        """
        if self.is_node:
            return (0,)
        workers = self.file.job.workers
        all_workers = tuple(range(self.worker_count))
        if workers == "all":
            return all_workers
        if workers == "auto":
            return (0,) if self.runtime.tensorflow else all_workers
        return tuple(workers)


def load_stack(path: Path) -> Stack:
    """The stack of a file, to be made. Raises InvalidStack with every problem found."""
    stack = read_stack(path)
    stack.require_valid()
    return stack


def read_stack(path: Path) -> Stack:
    """The stack of a file, to be looked at or taken away, and with its problems.

    Raises InvalidStack for a file that does not say what a stack is.
    """
    text = read_stack_text(path)
    file = text.validate()
    problems = list(find_problems(file, text))
    names = Names(file.stack or slug(path.resolve().parent.name), file.project.id)
    if file.bucket.name == "auto" and (problem := bucket_name_problem(names.bucket)):
        problems.append(_bucket_problem(names.bucket, problem, text))
    accelerator = accelerator_type(file.tpu.type)
    if accelerator is None or not accelerator.in_tpu_api:
        accelerator = _placeholder_accelerator()
    zones = resolve_zones(file, accelerator)
    location = file.bucket.location.lower()
    return Stack(
        path=path,
        file=file,
        names=names,
        accelerator=accelerator,
        runtime=_runtime(file, accelerator) or _placeholder_runtime(file),
        zone=zones[0],
        zones=zones,
        bucket=names.bucket if file.bucket.name == "auto" else file.bucket.name,
        bucket_location=region_of(zones[0]) if location == "auto" else location,
        user=_user(file.access.user),
        problems=tuple(problems),
    )


def _bucket_problem(name: str, problem: str, text: StackText) -> Diagnostic:
    return Diagnostic(
        "Bucket name not valid",
        f"the bucket would be {name}, of the stack's and the project's names, and {problem}",
        "Set another name:\n    bucket: {name: NAME}",
        text.where("bucket.name"),
    )


def minimal_stack(name: str, project: str, *, option: str = "--stack") -> Stack:
    """What a name and a project alone say of a stack: enough to find it and to take it away.

    Raises Usage, which names `option` or --project.
    """
    try:
        file = StackFile.model_validate(
            {"stack": name, "project": {"id": project}, "tpu": {"type": PLACEHOLDER_TYPE}}
        )
    except ValidationError as error:
        which = option if error.errors()[0]["loc"][0] == "stack" else "--project"
        raise Usage(
            "Invalid name",
            f"{which} cannot be {name if which == option else project!r}",
            hint=f"A stack's name: {FORMATS['stack']}\nA project's id: {FORMATS['project.id']}",
            where=which,
        ) from None
    names = Names(name, project)
    accelerator = _placeholder_accelerator()
    zones = resolve_zones(file, accelerator)
    return Stack(
        path=Path("tpuctl.yaml"),
        file=file,
        names=names,
        accelerator=accelerator,
        runtime=_placeholder_runtime(file),
        zone=zones[0],
        zones=zones,
        bucket=names.bucket,
        bucket_location=region_of(zones[0]),
        user=_user("auto"),
    )


def _runtime(file: StackFile, accelerator: AcceleratorType) -> Runtime | None:
    version_name = file.tpu.runtime
    if file.tpu.kind == "vm":
        return runtime_for(accelerator) if version_name == "auto" else runtime(version_name)
    version = node_versions()[0] if version_name == "auto" else node_version(version_name)
    if version is None:
        return None
    return Runtime(version.version, version.tensorflow, (accelerator.generation,), "any")


def _placeholder_accelerator() -> AcceleratorType:
    """Of a stack that does not say which: its machines are looked for by other marks."""
    accelerator = accelerator_type(PLACEHOLDER_TYPE)
    assert accelerator is not None
    return accelerator


def _placeholder_runtime(file: StackFile) -> Runtime:
    tpu = file.tpu.model_copy(update={"runtime": "auto"})
    runtime_ = _runtime(file.model_copy(update={"tpu": tpu}), _placeholder_accelerator())
    assert runtime_ is not None
    return runtime_


def slug(text: str) -> str:
    """A stack name from a folder's name."""
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:26].strip("-")
    return slug if re.fullmatch(STACK_NAME, slug) else f"stack-{slug}"[:26].strip("-")


def _user(user: str) -> str:
    """A user name that a machine accepts; root may not log in on Google's images."""
    if user != "auto":
        return user
    try:
        local = getpass.getuser()
    except (OSError, KeyError):  # no entry for this user, as in some containers
        local = "tpuctl"
    slug = re.sub(r"[^a-z0-9_-]", "", local.lower())[:32]
    return slug if re.fullmatch(USER_NAME, slug) and slug != "root" else "tpuctl"
