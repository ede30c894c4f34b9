"""A stack: its validated file, with all defaults resolved."""

from __future__ import annotations

import getpass
import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from tpuctl.catalog import (
    APIS,
    AcceleratorType,
    Api,
    NodeVersion,
    Price,
    Runtime,
    TpuMachine,
    base_runtime,
    node_price,
    node_version,
    node_versions,
    region_of,
    runtime,
    runtime_for,
    tpu_machine,
    unlisted_runtime,
)
from tpuctl.errors import Diagnostic, InvalidStack, Usage
from tpuctl.model.jobs.attempt import Retry
from tpuctl.model.scripts.framework import FrameworkChoice, framework_in, is_tensorflow
from tpuctl.model.stack.candidates import (
    PLACEHOLDER_TYPE,
    SPOT,
    Candidate,
    accelerator_of,
    all_candidates,
    alternatives_of,
    by_price,
    with_tpu,
)
from tpuctl.model.stack.encryption import CryptoKey, crypto_key_of
from tpuctl.model.stack.machine_rules import default_machine_type
from tpuctl.model.stack.network_reference import host_project, reference
from tpuctl.model.stack.schema import ControllerSection, QueueSection, StackFile, TpuSection
from tpuctl.model.stack.secret_sources import Source, source_of
from tpuctl.model.stack.spending import NOTHING_SPENT, Spent
from tpuctl.model.stack.stack_rules import find_problems
from tpuctl.model.stack.stack_text import FORMATS, StackText, read_stack_text
from tpuctl.model.text.duration import moment_of
from tpuctl.model.text.names import STACK_NAME, USER_LABEL, USER_NAME, Names, bucket_name_problem
from tpuctl.model.text.os_login import OS_LOGIN, os_login_in
from tpuctl.model.workers.worker_numbering import WorkerNumbering

MAX_NAME_LENGTH, HASH_LENGTH = 26, 6
RUNTIME_PYTHON = "3.10"  # of the TPU API's software versions, which have Ubuntu 22.04


@dataclass(frozen=True)
class Stack:
    """A stack. Nothing here is "auto" any more, except the network's name.

    A stack with problems can still be inspected and deleted: unavailable settings are replaced by
    valid ones.
    """

    path: Path
    file: StackFile  # its `tpu` is the alternative in use
    names: Names
    accelerator: AcceleratorType
    node_runtime: Runtime  # of the TPU API; for a TPU node: its version, with its TensorFlow
    framework: FrameworkChoice | None  # of its jobs; None if nothing tells
    candidate: Candidate  # the zone and API in use: the first, until another is tried
    candidates: tuple[Candidate, ...]  # all, in order
    alternatives: tuple[TpuSection, ...]  # one for a stack without `tpu.any_of`
    bucket: str
    bucket_location: str
    user: str
    problems: tuple[Diagnostic, ...] = ()  # why it cannot be created
    python_where: str = "job.python"  # the key or option that sets the Python of its jobs
    controller_zone: str = ""  # where the controller is, if not beside the TPU in use
    spent: Spent = NOTHING_SPENT  # by machines before the next, as read from its ledger

    def require_valid(self) -> None:
        """Raise InvalidStack with all problems that prevent creating it."""
        if self.problems:
            raise InvalidStack(self.problems)

    @property
    def name(self) -> str:
        return self.names.stack

    @property
    def project(self) -> str:
        return self.names.project

    @property
    def zone(self) -> str:
        """The zone in use."""
        return self.candidate.zone

    @property
    def zone_of_controller(self) -> str:
        """The zone of the controller, which may have stayed when the TPU moved."""
        return self.controller_zone or self.zone

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones of all candidates, in order."""
        return tuple(dict.fromkeys(candidate.zone for candidate in self.candidates))

    @property
    def api(self) -> Api:
        """Who sells the TPU in use."""
        return self.candidate.api

    @property
    def unused_apis(self) -> frozenset[Api]:
        """Who cannot have sold the stack's TPU, unless the stack file was changed since."""
        return frozenset(APIS) - self.apis

    @property
    def apis(self) -> frozenset[Api]:
        """Who may sell it, of all candidates."""
        return frozenset(candidate.api for candidate in self.candidates)

    @property
    def is_compute(self) -> bool:
        """Whether the TPU consists of Compute Engine instances."""
        return self.api == "compute"

    @property
    def machine(self) -> TpuMachine:
        """The machines of a slice; only for a TPU that Compute Engine sells."""
        machine = tpu_machine(self.accelerator, self.file.tpu.topology)
        assert machine is not None, "Compute Engine sells the type"
        return machine

    @property
    def boot_disk_type(self) -> str:
        """The type of the boot disks of a TPU that Compute Engine sells."""
        configured = self.file.tpu.boot_disk.type
        if configured != "auto":
            return configured
        return self.machine.boot_disks[0]

    @property
    def runtime(self) -> Runtime:
        """The software of the workers: a version of the TPU API, or an image of Compute Engine."""
        if not self.is_compute:
            return self.node_runtime
        machine = self.machine
        generations = (self.accelerator.generation,)
        return Runtime(machine.image, None, generations, "any", machine.python)

    @property
    def network_project(self) -> str:
        """The project of the machines' network: the stack's own, or a host project."""
        return host_project(self.file) or self.project

    @property
    def has_shared_network(self) -> bool:
        """Whether the network is a host project's (Shared VPC)."""
        return self.network_project != self.project

    @property
    def network_name(self) -> str:
        """The network's name in its project, or auto."""
        return reference(self.file.network.name).name

    def network_path(self, name: str) -> str:
        """The full name of a network in the network's project."""
        return f"projects/{self.network_project}/global/networks/{name}"

    @property
    def subnetwork_name(self) -> str | None:
        """The configured subnetwork's name in the region; None: the one of the network's name."""
        text = self.file.network.subnetwork
        return None if text is None else reference(text).name

    @property
    def subnetwork_path(self) -> str | None:
        name, region = self.subnetwork_name, self.region
        return name and f"projects/{self.network_project}/regions/{region}/subnetworks/{name}"

    @property
    def has_internet(self) -> bool:
        """Whether machines can download: those without external addresses may lack Cloud NAT."""
        network = self.file.network
        return network.ssh == "external" or network.nat or network.proxy is not None

    @property
    def image_python(self) -> str:
        """The Python of the workers' software, as in "3.10"."""
        return self.runtime.python or RUNTIME_PYTHON

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def is_spot(self) -> bool:
        """Whether the node may be preempted at any time, at a lower price."""
        return self.file.tpu.capacity in SPOT

    @property
    def is_node(self) -> bool:
        """Whether the TPU is a node of API v1, driven by a controller."""
        return self.file.tpu.kind == "node"

    @property
    def has_fixed_runtime(self) -> bool:
        """Whether the stack file decides the runtime, whatever the framework."""
        return self.is_node or self.is_compute or self.file.tpu.runtime != "auto"

    @property
    def queue(self) -> QueueSection | None:
        """Settings of the queued resource; None to create nodes or instances directly."""
        return None if self.is_compute else _queue(self.file.tpu)

    @property
    def slices(self) -> int:
        """The number of slices that run each job together."""
        return self.file.tpu.slices

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the stack's nodes. Each slice is a node."""
        independent = self.queue.nodes if self.queue is not None else 1
        return self.names.nodes(max(independent, self.slices))

    @property
    def controller(self) -> ControllerSection | None:
        """The controller, with a machine type that the zone in use offers.

        A TPU node always has one.
        """
        default = ControllerSection() if self.is_node else None
        section = self.file.controller or default
        if section is None or section.machine_type != "auto":
            return section
        return section.model_copy(update={"machine_type": default_machine_type(self.region)})

    @property
    def crypto_key(self) -> CryptoKey | None:
        """The key that encrypts what is created; None for Google's own."""
        return crypto_key_of(self.file)

    @property
    def has_limits(self) -> bool:
        """Whether machines delete themselves at limits."""
        limits = self.file.limits
        return limits.idle is not None or self.counts_spending

    @property
    def counts_spending(self) -> bool:
        """Whether limits count what machines have spent."""
        return self.has_life_limits or self.budget is not None

    @property
    def has_life_limits(self) -> bool:
        """Whether limits count what all machines of the stack have spent since its first `up`."""
        return self.file.limits.max_hours is not None or self.file.limits.max_cost is not None

    @property
    def budget(self) -> float | None:
        """US dollars a month for all stacks of the project that have a budget."""
        text = self.file.limits.budget
        return None if text is None else float(text.removesuffix("/month").lstrip("$"))

    @property
    def has_recovery(self) -> bool:
        """Whether the controller recovers jobs whose machines failed or were preempted."""
        retries = self.file.job.retries
        return self.controller is not None and any(map(retries.of, get_args(Retry)))

    @property
    def controller_places(self) -> tuple[Candidate, ...]:
        """Where the controller may create the TPU, the place in use first: where that needs nothing
        that it may not create."""
        is_pinned = self.is_node or bool(self.file.tpu.data_disks)
        in_region = self.file.network.ssh != "external"  # subnets have access to Google by region

        def is_possible(place: Candidate) -> bool:
            return (place.zone == self.zone or not is_pinned) and (
                region_of(place.zone) == self.region or not in_region
            )

        others = (place for place in self.candidates if is_possible(place))
        return tuple(dict.fromkeys((self.candidate, *others)))

    @property
    def has_os_login(self) -> bool:
        """Whether the machines' metadata turns OS Login on."""
        return os_login_in(self.file.tpu.metadata) is True

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all resources that support them."""
        return {**self.file.labels, **self.names.labels}

    @property
    def new_labels(self) -> dict[str, str]:
        """The labels of what is created now: those of all, and who creates it."""
        return {USER_LABEL: re.sub(r"[^a-z0-9_-]", "-", self.user.lower()), **self.labels}

    @property
    def tags(self) -> list[str]:
        """The network tags of all machines, which firewall rules select."""
        return [self.names.tag, *self.file.network.tags]

    @property
    def region(self) -> str:
        return region_of(self.zone)

    def with_python(self, python: str, where: str = "--python") -> Stack:
        """The same stack, whose jobs run on this Python (as job.python); "" leaves it as it is."""
        if not python:
            return self
        job = self.file.job.model_copy(update={"python": python})
        return replace(self, file=self.file.model_copy(update={"job": job}), python_where=where)

    def for_framework(self, choice: FrameworkChoice | None) -> Stack:
        """The same stack for a script of this framework, unless the stack file sets one.

        Decides about a runtime that is `auto`.
        """
        if choice is None or self.file.job.framework != "auto":
            return self
        runtime = _runtime(self.file, self.accelerator, choice) or self.node_runtime
        return replace(self, framework=choice, node_runtime=runtime)

    def on_runtime(self, version: str) -> Stack:
        """The same stack on a node that exists: `auto` chooses a runtime for a new node only.

        A runtime for a framework other than that of the stack file remains a difference.
        """
        actual = runtime(version)
        if self.has_fixed_runtime or actual is None:
            return self
        is_other = (actual.tensorflow is None) != (self.runtime.tensorflow is None)
        if (is_other and self.file.job.framework != "auto") or not actual.fits(self.accelerator):
            return self
        return replace(self, node_runtime=actual)

    def in_zone(self, zone: str) -> Stack:
        """The same stack with its TPU in another zone. The bucket does not move."""
        return self.at(replace(self.candidate, zone=zone))

    def at(self, candidate: Candidate) -> Stack:
        """The same stack with its TPU from another candidate. The bucket does not move."""
        if candidate.alternative == self.candidate.alternative:
            return replace(self, candidate=candidate)
        tpu = self.alternatives[candidate.alternative]
        file, accelerator = with_tpu(self.file, tpu), accelerator_of(tpu)
        return replace(
            self,
            candidate=candidate,
            file=file,
            accelerator=accelerator,
            node_runtime=_node_runtime(file, accelerator, self.framework),
        )

    def parallel(self, number: int) -> Stack:
        """One of the TPUs that work on the stack's queue at the same time; the first is its own.

        The others are stacks NAME-2, NAME-3 and so on, of a TPU alone: they use the bucket, the
        account, the network and the ledger of this one, whose controller drives them.
        """
        names = self.names.parallel(number)
        if names == self.names:
            return self
        assert number > 1, "the controller of the stack's own is not known here"
        file = self.file.model_copy(update={"controller": None})
        return replace(self, names=names, file=file)

    @property
    def by_alternative(self) -> Iterator[Stack]:
        """The stack at the first candidate of each alternative, in order."""
        first = {place.alternative: place for place in reversed(self.candidates)}
        return (self.at(first[index]) for index in sorted(first))

    def with_os_login(self) -> Stack:
        """The same stack, whose machines' metadata turns OS Login on."""
        metadata = {**self.file.tpu.metadata, OS_LOGIN: "TRUE"}
        alternatives = tuple(
            tpu.model_copy(update={"metadata": metadata}) for tpu in self.alternatives
        )
        file = with_tpu(self.file, alternatives[self.candidate.alternative])
        return replace(self, file=file, alternatives=alternatives)

    def bounded(self, now: datetime) -> Stack:
        """The same stack, whose `tpu.deadline` is a time, and whose requests are valid no longer.

        A deadline that has passed bounds no request: nothing may be requested any more.
        """
        if self.file.tpu.deadline is None:
            return self
        alternatives = tuple(_bounded(tpu, now) for tpu in self.alternatives)
        file = with_tpu(self.file, alternatives[self.candidate.alternative])
        return replace(self, file=file, alternatives=alternatives)

    @property
    def deadline(self) -> datetime | None:
        """When to stop looking for a TPU, of a stack that is bounded."""
        text = self.file.tpu.deadline
        return None if text is None else datetime.fromisoformat(text)

    @property
    def resuming(self) -> Stack:
        """The stack with the candidates on which a job of this alternative may be restarted."""
        if self.file.job.resume == "any":
            return self

        def is_same(place: Candidate) -> bool:
            tpu, other = self.file.tpu, self.alternatives[place.alternative]
            return (other.type, other.slices) == (tpu.type, tpu.slices)

        return replace(self, candidates=tuple(filter(is_same, self.candidates)))

    def place_of(
        self,
        zone: str,
        api: Api,
        type_name: str,
        capacity: str | None = None,
        nodes: Collection[str] = (),
    ) -> Candidate:
        """The place of a TPU that exists, of the alternative that it fits best.

        Its capacity and the names of its nodes may be unknown.
        """

        def fit(place: Candidate) -> tuple[bool, bool, bool, bool]:
            tpu = self.alternatives[place.alternative]
            return (
                tpu.type == type_name,
                {*nodes} <= {*self.at(place).nodes},
                tpu.capacity == capacity,
                place in self.candidates,
            )

        places = [Candidate(zone, api, index) for index in range(len(self.alternatives))]
        return max(places, key=fit)

    @property
    def creates_service_account(self) -> bool:
        return self.file.tpu.service_account is None

    @property
    def service_account(self) -> str:
        return self.file.tpu.service_account or self.names.service_account_email

    @property
    def secrets(self) -> dict[str, Source]:
        """Sources of the stack file's secret variables."""
        return {
            name: source_of(name, text, self.project)
            for name, text in self.file.job.secrets.items()
        }

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Distinct secrets in Secret Manager, as projects/P/secrets/NAME."""
        sources = [*self.secrets.values(), *([self.webhook] if self.webhook is not None else [])]
        return tuple(sorted({source.secret for source in sources if source.secret}))

    @property
    def webhook(self) -> Source | None:
        """The secret with the URL that notifications are sent to, if any."""
        notify = self.file.notify
        return None if notify is None else source_of("", notify.url, self.project)

    @property
    def has_only_project_secrets(self) -> bool:
        """Whether all secrets are in the stack's project."""
        prefix = f"projects/{self.project}/"
        return all(name.startswith(prefix) for name in self.secret_names)

    @property
    def counted_type(self) -> str:
        """The type and the number of nodes: `v5p-16`, `2 x v5p-16`."""
        count, name = len(self.nodes), self.accelerator.name
        return name if count == 1 else f"{count} x {name}"

    @property
    def price(self) -> Price | None:
        """Hourly price of one node."""
        return node_price(self.accelerator, self.zone, capacity=self.file.tpu.capacity)

    @property
    def worker_count(self) -> int:
        """Number of machines that run its jobs: the workers of all nodes, or the controller."""
        return 1 if self.is_node else len(self.nodes) * self.accelerator.workers

    @property
    def numbering(self) -> WorkerNumbering:
        return WorkerNumbering(self.worker_count, self.slices, self.name)

    def job_workers(self) -> tuple[int, ...]:
        """The workers that run the script, numbered across all nodes in order.

        Multi-host TensorFlow is driven from worker 0 only; anything else runs on every worker, as
        does a job of several slices. For a TPU node it is the controller.
        """
        if self.is_node:
            return (0,)
        workers = self.file.job.workers
        all_workers = tuple(range(self.worker_count))
        if workers == "all":
            return all_workers
        if workers == "auto":
            is_driven = is_tensorflow(self.framework) and self.runtime.tensorflow is not None
            return (0,) if is_driven and self.slices == 1 else all_workers
        return tuple(workers)


def load_stack(path: Path) -> Stack:
    """Load a stack file in order to create the stack. Raises InvalidStack with all problems."""
    stack = read_stack(path)
    stack.require_valid()
    return stack


def read_stack(path: Path) -> Stack:
    """Load a stack file in order to inspect or delete the stack, with its problems.

    Raises InvalidStack if the file is not valid against the schema.
    """
    return stack_of_text(read_stack_text(path), path)


def stack_of_text(text: StackText, path: Path) -> Stack:
    """The stack of a stack file's text, which need not be at `path` yet, with its problems.

    Raises InvalidStack if the text is not valid against the schema.
    """
    file = text.validate()
    problems = find_problems(file, text)
    name = file.names.prefix + (file.stack or slug(path.resolve().parent.name))
    if not re.fullmatch(STACK_NAME, name):
        problems.append(_name_problem(name, text))
    names = Names(name, file.project.id, shares_network=bool(host_project(file)))
    if file.bucket.name == "auto" and (problem := bucket_name_problem(names.bucket)):
        problems.append(_bucket_problem(names.bucket, problem, text))
    listed, alternatives = all_candidates(file), alternatives_of(file)
    candidates = by_price(file, listed) if file.tpu.prefer == "price" else listed
    location = file.bucket.location.lower()
    file = with_tpu(file, alternatives[candidates[0].alternative])
    accelerator, framework = accelerator_of(file.tpu), _framework(file, text.folder)
    return Stack(
        path=path,
        file=file,
        names=names,
        accelerator=accelerator,
        node_runtime=_node_runtime(file, accelerator, framework),
        framework=framework,
        candidate=candidates[0],
        candidates=candidates,
        alternatives=alternatives,
        bucket=names.bucket if file.bucket.name == "auto" else file.bucket.name,
        bucket_location=region_of(listed[0].zone) if location == "auto" else location,
        user=_user(file.access.user),
        problems=tuple(problems),
    )


def _name_problem(name: str, text: StackText) -> Diagnostic:
    return Diagnostic(
        "Stack name too long",
        f"with names.prefix, the stack is named {name}, which has {len(name)} characters of at "
        f"most {MAX_NAME_LENGTH}",
        "Set a shorter name:\n    stack: NAME",
        text.where("names.prefix"),
    )


def _bucket_problem(name: str, problem: str, text: StackText) -> Diagnostic:
    return Diagnostic(
        "Invalid bucket name",
        f"the default name {name}, from stack and project, is not allowed: {problem}",
        "Set another name:\n    bucket: {name: NAME}",
        text.where("bucket.name"),
    )


def minimal_stack(name: str, project: str, *, option: str = "--stack") -> Stack:
    """A stack from only a name and a project: enough to find and delete it.

    Raises Usage for `option` or --project.
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
            hint=f"Stack name: {FORMATS['stack']}\nProject ID: {FORMATS['project.id']}",
            where=which,
        ) from None
    names = Names(name, project)
    accelerator = accelerator_of(file.tpu)
    candidates = all_candidates(file)
    candidates += tuple(
        Candidate(candidate.zone, "compute") for candidate in candidates
    )  # nothing tells
    return Stack(
        path=Path("tpuctl.yaml"),
        file=file,
        names=names,
        accelerator=accelerator,
        node_runtime=_placeholder_runtime(file),
        framework=None,
        candidate=candidates[0],
        candidates=candidates,
        alternatives=(file.tpu,),
        bucket=names.bucket,
        bucket_location=region_of(candidates[0].zone),
        user=_user("auto"),
    )


def _framework(file: StackFile, folder: Path) -> FrameworkChoice | None:
    if file.job.framework != "auto":
        return FrameworkChoice(file.job.framework, "job.framework")
    if file.tpu.runtime != "auto" or file.tpu.kind == "node":
        return None  # the script of each job tells
    requirements = file.job.requirements
    name = None if requirements in (None, "auto") else requirements.partition("[")[0].strip()
    return framework_in(folder, name)


def _runtime(
    file: StackFile, accelerator: AcceleratorType, choice: FrameworkChoice | None = None
) -> Runtime | None:
    version_name = file.tpu.runtime
    if file.tpu.kind == "vm":
        if version_name != "auto":
            return runtime(version_name) or unlisted_runtime(version_name)
        return runtime_for(accelerator) if is_tensorflow(choice) else base_runtime(accelerator)
    if version_name == "auto":
        needs_torch = choice is not None and choice.framework == "torch"
        versions = [version for version in node_versions() if version.pytorch or not needs_torch]
        version: NodeVersion | None = versions[0]
    else:
        version = node_version(version_name)
    if version is None:
        return None
    return Runtime(version.version, version.tensorflow, (accelerator.generation,), "any", None)


def _queue(tpu: TpuSection) -> QueueSection | None:
    """Several slices of the Cloud TPU API are requested together."""
    return tpu.queue or (QueueSection() if tpu.slices > 1 else None)


def _bounded(tpu: TpuSection, now: datetime) -> TpuSection:
    assert tpu.deadline is not None, "the same in all alternatives"
    until = moment_of(tpu.deadline, now)
    changes: dict[str, object] = {"deadline": until.isoformat()}
    queue = _queue(tpu)
    if queue is not None and now < until:
        valid_until = queue.valid_until
        if valid_until is None or until < moment_of(valid_until, now):
            changes["queue"] = queue.model_copy(update={"valid_until": until.isoformat()})
    return tpu.model_copy(update=changes)


def _node_runtime(
    file: StackFile, accelerator: AcceleratorType, framework: FrameworkChoice | None
) -> Runtime:
    return _runtime(file, accelerator, framework) or _placeholder_runtime(file)


def _placeholder_runtime(file: StackFile) -> Runtime:
    tpu = file.tpu.model_copy(update={"type": PLACEHOLDER_TYPE, "runtime": "auto"})
    runtime_ = _runtime(file.model_copy(update={"tpu": tpu}), accelerator_of(tpu))
    assert runtime_ is not None
    return runtime_


def slug(text: str) -> str:
    """Derive a stack name from a folder's name.

    Case and punctuation do not count. A name that would lose anything else, such as letters of
    another script or its end, gets a short hash, so that different folders have different stacks.
    """
    text = unicodedata.normalize("NFC", text)  # macOS stores names decomposed
    plain = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    if not re.fullmatch(STACK_NAME, name[:MAX_NAME_LENGTH].strip("-")):
        name = f"stack-{name}".strip("-")
    is_whole = text.isascii() and len(name) <= MAX_NAME_LENGTH and re.search(r"\w", plain)
    if is_whole or not text:
        return name
    mark = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:HASH_LENGTH]
    return f"{name[: MAX_NAME_LENGTH - HASH_LENGTH - 1].rstrip('-')}-{mark}"


def _user(user: str) -> str:
    """A valid user name for machines; Google's images do not allow root."""
    if user != "auto":
        return user
    try:
        local = getpass.getuser()
    except (OSError, KeyError):  # no entry for this user, as in some containers
        local = "tpuctl"
    slug = re.sub(r"[^a-z0-9_-]", "", local.lower())[:32]
    return slug if re.fullmatch(USER_NAME, slug) and slug != "root" else "tpuctl"
