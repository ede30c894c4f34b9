"""A submission: a program to run on a stack, with everything it depends on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tpuctl.catalog import Api, accelerator_type
from tpuctl.cloud.caller_identity import principal_of
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Conflict, Usage
from tpuctl.flows.jobs.secret_versions import require_secrets
from tpuctl.flows.machines.controller import first_access, node_variables
from tpuctl.flows.packages.job_python import JobTarget, with_tools
from tpuctl.jobs.bundle import Bundle
from tpuctl.jobs.launch import FirstAccess
from tpuctl.jobs.requirements.installation import named_files, read_installation
from tpuctl.jobs.requirements.python_choice import PythonChoice
from tpuctl.model.cost.stack_cost import cost_of
from tpuctl.model.jobs.attempt import Placement, Retries
from tpuctl.model.jobs.hang import JobLimits
from tpuctl.model.jobs.installation import Installation
from tpuctl.model.jobs.job import JobKind, JobRecord
from tpuctl.model.jobs.sweep import SweepValues
from tpuctl.model.scripts.framework import FrameworkChoice, is_tensorflow
from tpuctl.model.stack.notification_settings import notification_settings
from tpuctl.model.stack.proxy import network_settings
from tpuctl.model.stack.secret_sources import Secrets
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.status import NodeStatus
from tpuctl.model.workers.worker_numbering import WorkerNumbering
from tpuctl.model.workers.worker_ports import MEGASCALE_PORT
from tpuctl.resources.access.secret_grants import propagation_seconds
from tpuctl.resources.project.stack_record import Record
from tpuctl.user_account import user_at_host

# Read by libtpu, and by JAX to find the first process.
MEGASCALE = (
    "MEGASCALE_COORDINATOR_ADDRESS",
    "MEGASCALE_NUM_SLICES",
    "MEGASCALE_SLICE_ID",
    "MEGASCALE_PORT",
)


@dataclass(frozen=True)
class BoundMachines:
    """The machines that a job runs on. All but the first three are known once they are up."""

    zone: str
    node: str
    runtime: str
    accelerator: str = ""  # TPU type
    placement: Placement | None = None
    addresses: tuple[str, ...] = ()  # of the workers in their network
    endpoints: tuple[str, ...] = ()  # of a TPU node
    topology: str = ""  # of the slices that Compute Engine sells
    compiled: str | None = None  # as in Launch
    first_access: FirstAccess | None = None  # of the TPU node's account to the bucket
    secret_seconds: float = 0.0  # as in Launch


@dataclass(frozen=True)
class Submission:
    """A script, module or command to run on a stack, with everything it depends on: what the user
    asked for, and the machines that are bound to it later."""

    stack: str
    project: str
    bucket: str
    script: Path | None  # the uploaded file to run; None for a module or command
    worker_count: int
    workers: tuple[int, ...]
    machines: BoundMachines
    slices: int = 1  # that run it together
    nodes: tuple[str, ...] = ()  # workers are numbered across nodes
    is_node: bool = False  # its one worker is the controller of a TPU node
    kind: JobKind = "script"
    program: str = ""  # module name, or first word of a command
    args: tuple[str, ...] = ()
    values: SweepValues = field(default_factory=dict)  # of `run --each`, part of the arguments
    cloud: str = "google"
    framework: FrameworkChoice | None = None  # None if nothing tells
    python: PythonChoice = field(default_factory=PythonChoice)
    root: Path | None = None  # the folder to upload; default: the script's folder
    additions: Mapping[str, Path] = field(default_factory=dict)  # to the bundle, by name
    bundle: Bundle | None = None  # of that folder, if already built
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    installation: Installation = field(default_factory=Installation)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Secrets = field(default_factory=Secrets)
    max_hours: float | None = None
    timeout: float | None = None  # seconds
    retries: Retries = field(default_factory=Retries)
    limits: JobLimits = field(default_factory=JobLimits)
    network: Mapping[str, Any] | None = None  # as in Launch, but for the workers' addresses
    notify: Mapping[str, Any] | None = None  # as in Launch; known once machines are up
    submitted_by: str = ""
    submitted_as: str = ""  # known once the cloud is accessed

    @classmethod
    def of(
        cls,
        stack: Stack,
        script: Path | None,
        args: tuple[str, ...] = (),
        *,
        cloud: str = "google",
        form: JobKind = "script",
        program: str = "",
        root: Path | None = None,
        timeout: float | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> Submission:
        """A submission with the settings of the stack file and the folder to upload.

        `secrets` are additional sources of secrets, by name. Raises Usage if a secret's
        environment variable is not set.
        """
        job = stack.file.job
        folder = root or (script.parent if script is not None else Path())
        installation = read_installation(job, folder, script)
        return cls(
            stack=stack.name,
            project=stack.project,
            bucket=stack.bucket,
            machines=BoundMachines(stack.zone, stack.names.node, stack.runtime.version),
            script=script,
            kind=form,
            program=program,
            root=root,
            slices=stack.slices,
            nodes=stack.nodes,
            worker_count=stack.worker_count,
            workers=stack.job_workers(),
            is_node=stack.is_node,
            args=args,
            cloud=cloud,
            framework=stack.framework,
            include=(*job.include, *named_files(job, installation)),
            exclude=job.exclude,
            installation=installation,
            env=dict(job.env),
            secrets=Secrets.of(
                {**job.secrets, **(secrets or {})}, stack.project, environment=os.environ
            ),
            max_hours=stack.file.limits.max_hours,
            timeout=timeout,
            retries=Retries.model_validate(
                job.retries.model_dump()
            ),  # from the stack file's model to the record's
            limits=JobLimits.model_validate(job.limits.model_dump()),
            network=network_settings(stack.file, stack.folder),
            submitted_by=user_at_host(),
        )

    def on(self, stack: Stack) -> Submission:
        """The submission for the machines of one of the stack's alternatives. The workers of
        notebooks were chosen before."""
        return replace(
            self,
            slices=stack.slices,
            nodes=stack.nodes,
            worker_count=stack.worker_count,
            workers=self.workers if self.kind == "notebook" else stack.job_workers(),
        )

    def with_values(self, values: SweepValues) -> Submission:
        """The submission with these options appended to the script's arguments."""
        options = tuple(f"--{name}={value}" for name, value in values.items())
        return replace(self, args=(*self.args, *options), values=values)

    @classmethod
    def for_retry(cls, record: JobRecord, stack: Stack, *, cloud: str = "google") -> Submission:
        """A submission for another attempt, from the job's record and values in the stack file.

        Raises Usage for missing values, and Conflict if the stack file now specifies different
        machines.
        """
        values = dict(stack.file.job.env)
        missing = [name for name in record.env if name not in values]
        if missing:
            raise Usage(
                "Environment variable missing",
                f"job {record.id} was submitted with {', '.join(missing)}; its record has no "
                "values, and the stack file does not set them",
                hint=f"Set job.env in the stack file, then run\n    tpuctl wait {record.id}",
            )
        if stack.numbering != record.numbering:
            raise Conflict(
                "Number of workers changed",
                f"job {record.id} runs on {_workers_text(record.numbering)}, the stack file "
                f"specifies {_workers_text(stack.numbering)}",
                hint=f"Submit it again:\n    {record.command_line}",
            )
        return cls(
            stack=record.stack,
            project=record.project,
            bucket=record.bucket,
            machines=BoundMachines(record.zone, record.node, stack.runtime.version),
            script=None,
            kind=record.kind,
            program=record.script,
            slices=record.slices,
            nodes=stack.nodes,
            worker_count=record.worker_count,
            workers=record.workers,
            is_node=stack.is_node,
            args=record.args,
            cloud=cloud,
            framework=stack.framework,
            installation=record.installation,
            env={name: values[name] for name in record.env},
            secrets=Secrets.of(record.secrets, record.project, environment=os.environ),
            max_hours=record.max_hours,
            timeout=record.timeout,
            retries=record.retries,
            limits=record.limits,
            network=network_settings(stack.file, stack.folder),
            submitted_by=record.submitted_by,
        )


def with_job_python(
    submission: Submission, stack: Stack, target: JobTarget | None = None
) -> Submission:
    """The submission with the Python that the job brings, and what installs its packages; see
    `with_tools`. The target is that of the stack's workers by default."""
    script = submission.script
    folder = submission.root or (script.parent if script is not None else Path())
    installation, choice = with_tools(
        stack.file.job,
        submission.installation,
        folder,
        script if submission.kind == "script" else None,
        target or JobTarget.of(stack, submission.cloud),
        stack.python_where,
    )
    return replace(submission, installation=installation, python=choice)


def require_all_slices(stack: Stack) -> None:
    """Raise Usage if a job would not use all slices of a stack with several."""
    if stack.slices == 1:
        return
    workers = stack.job_workers()
    if len(workers) < stack.worker_count:
        names = ", ".join(map(stack.numbering.name, workers))
        raise Usage(
            "Job is not on all workers",
            f"job.workers selects {names}; {stack.slices} slices run a job on all workers",
            hint="Remove it, or set\n    job: {workers: all}",
            where="job.workers",
        )
    if stack.framework is not None and is_tensorflow(stack.framework):
        raise Usage(
            "TensorFlow does not use several slices",
            f"the job uses {stack.framework}, the stack has {stack.slices} slices",
            hint="Use JAX or PyTorch/XLA, or set\n    tpu: {slices: 1}",
            where="tpu.slices",
        )


def _workers_text(numbering: WorkerNumbering) -> str:
    in_slices = f" in {numbering.slices} slices" if numbering.slices > 1 else ""
    return f"{numbering.workers} workers{in_slices}"


def stack_of(record: JobRecord, stack: Stack) -> Stack:
    """The stack with the framework and the runtime that a job was submitted with, in its place,
    and with the candidates where it may be restarted. For a job that waits in the queue, any."""
    if not record.is_waiting:
        api: Api = "compute" if "/" in record.runtime else "tpu"
        capacity = record.placement.capacity if record.placement is not None else ""
        number = record.placement.tpu if record.placement is not None else 1
        stack = stack.at(stack.place_of(record.zone, api, record.accelerator, capacity))
        stack = stack.parallel(number)
    if record.framework is not None:
        stack = stack.for_framework(FrameworkChoice(record.framework, f"job {record.id}"))
    stack = stack.on_runtime(record.runtime)
    return stack if record.is_waiting else stack.resuming


def _compiled(stack: Stack, runtime: str) -> str | None:
    """The folder of compiled programs for the stack's machines; None without a cache."""
    return f"{stack.accelerator.generation}/{runtime}/jax" if stack.file.job.cache else None


async def bind_to_nodes(
    submission: Submission, stack: Stack, cloud: Cloud, nodes: Sequence[NodeStatus]
) -> Submission:
    """The submission with what is known only once its nodes are up."""
    first = nodes[0]
    access = await first_access(stack, cloud, first) if stack.is_node else None
    await require_secrets(submission.secrets, cloud)
    contents = await Record(stack, cloud).read()
    machines = BoundMachines(
        first.zone,
        first.name,
        first.runtime,
        accelerator=first.accelerator_type,
        placement=Placement(
            zone=first.zone,
            node=first.name,
            node_ids=tuple(node.id for node in nodes),
            created=first.created,
            down_count=contents.down_count if contents is not None else 0,
            accelerator=first.accelerator_type,
            runtime=first.runtime,
            capacity=first.capacity or "",
            tpu=stack.names.number,
        ),
        addresses=tuple(address for node in nodes for address in node.inner_addresses),
        endpoints=first.endpoints,
        topology=stack.machine.topology if first.instances else "",
        compiled=_compiled(stack, first.runtime),
        first_access=access,
        secret_seconds=propagation_seconds(contents),
    )
    notify = notification_settings(stack, cost_of(stack).per_hour)
    return replace(submission, machines=machines, notify=notify, submitted_as=principal_of(cloud))


def job_network(submission: Submission) -> Mapping[str, Any] | None:
    """The submission's network, whose workers reach each other, and a TPU node, without a proxy."""
    network, machines = submission.network, submission.machines
    if network is None or not network["no_proxy"]:
        return network
    endpoints = (endpoint.partition(":")[0] for endpoint in machines.endpoints)
    hosts = dict.fromkeys([*network["no_proxy"], *machines.addresses, *endpoints])
    return {**network, "no_proxy": [*hosts]}


def worker_environment(submission: Submission, record: JobRecord, worker: int) -> dict[str, str]:
    """The environment variables that describe a worker to the script."""
    nodes = submission.nodes if len(submission.nodes) > 1 else (record.node,)
    workers_per_node = record.worker_count // len(nodes)
    is_local = workers_per_node == 1 and not submission.is_node
    variables = {
        "TPUCTL_JOB": record.id,
        "TPUCTL_ATTEMPT": str(record.attempt),
        "TPUCTL_WORKER": str(worker),
        "TPUCTL_WORKERS": str(record.worker_count),
        "TPUCTL_BUCKET": record.bucket,
        "TPUCTL_OUTPUT": record.output,
        "TPUCTL_CLOUD": submission.cloud,
        "TPU_NAME": "local" if is_local else nodes[worker // workers_per_node],
        "TPU_ZONE": record.zone,
        "TPU_PROJECT": record.project,
        **_type_variables(submission.machines.accelerator, len(nodes)),
        **_slice_variables(submission, worker),
        **node_variables(submission.machines.runtime, submission.machines.endpoints),
    }
    if submission.machines.topology:
        variables |= _machine_variables(submission, worker, workers_per_node)
        if len(nodes) == 1 and workers_per_node > 1 and _is_torch(submission):
            # By which torch-tpu ranks hosts, as in an indexed job of Kubernetes; TPU_WORKER_ID, it
            # does not read (torch_tpu/_internal/distributed/distributed.py of 0.2.0).
            variables["JOB_COMPLETION_INDEX"] = str(worker)
    if "-pod" in submission.machines.runtime and is_tensorflow(submission.framework):
        variables["TPU_LOAD_LIBRARY"] = "0"
    return variables


def _type_variables(name: str, nodes: int) -> dict[str, str]:
    """What the job got: its TPU type, and the number of chips on all nodes."""
    accelerator = accelerator_type(name)
    if accelerator is None:
        return {}
    return {"TPUCTL_TYPE": name, "TPUCTL_CHIPS": str(accelerator.chips * nodes)}


def _slice_variables(submission: Submission, worker: int) -> dict[str, str]:
    """What tells libtpu and JAX of other slices.

    The API also puts MEGASCALE_ variables into the metadata of all nodes of one request. Variables
    that are set, even to nothing, take precedence (jax/_src/clusters/cloud_tpu_cluster.py): nodes
    that are independent must not wait for each other.
    """
    numbering = WorkerNumbering(submission.worker_count, submission.slices)
    in_slice = numbering.slice_of(worker)
    if in_slice is None:
        return dict.fromkeys(MEGASCALE, "") if len(submission.nodes) > 1 else {}
    port = str(MEGASCALE_PORT)
    values = (
        f"{submission.machines.addresses[0]}:{port}",
        str(submission.slices),
        str(in_slice),
        port,
    )
    return {
        "TPUCTL_SLICE": str(in_slice),
        "TPUCTL_SLICES": str(submission.slices),
        **dict(zip(MEGASCALE, values, strict=True)),
    }


def _is_torch(submission: Submission) -> bool:
    return submission.framework is not None and submission.framework.framework == "torch"


def _machine_variables(submission: Submission, worker: int, per_slice: int) -> dict[str, str]:
    """What libtpu and frameworks read about the worker's slice before they ask the metadata server.

    The names and formats are those of GKE, whose TPU machines are instances, too. Compute Engine
    documents no metadata for slices: JAX looks for `agent-worker-number`, which instances may lack,
    and then for these (jax/_src/clusters/cloud_tpu_cluster.py).
    """
    first = worker - worker % per_slice
    return {
        "TPU_WORKER_ID": str(worker - first),
        "TPU_WORKER_HOSTNAMES": ",".join(submission.machines.addresses[first : first + per_slice]),
        "TPU_ACCELERATOR_TYPE": submission.machines.accelerator,
        "TPU_TOPOLOGY": submission.machines.topology,
    }
