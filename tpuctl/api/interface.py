"""`Tpuctl`: the Python API for one stack. Each method calls one flow with the context."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tpuctl.model.events import Emit, ignore
from tpuctl.user_account import name_user

if TYPE_CHECKING:
    from tpuctl.cloud.clients import Cloud
    from tpuctl.cloud.endpoints import Endpoint
    from tpuctl.cloud.objects import ObjectStore
    from tpuctl.errors import TpuctlError
    from tpuctl.flows.context import Context, Keys
    from tpuctl.flows.jobs.export import ExportedJobSet
    from tpuctl.flows.jobs.notebook import OpenNotebook
    from tpuctl.flows.jobs.run_state import RunOptions, RunState
    from tpuctl.flows.jobs.submission import Submission
    from tpuctl.flows.machines.cp import CopyResult
    from tpuctl.flows.machines.forward import PortMapping
    from tpuctl.flows.machines.workers import CommandResult
    from tpuctl.flows.preflight.rehearse import RehearsalOptions
    from tpuctl.flows.reports.dashboard import Dashboard
    from tpuctl.flows.stack.down import Teardown
    from tpuctl.flows.stack.plan import Prepared
    from tpuctl.jobs.jobset import JobSetSettings
    from tpuctl.jobs.requirements.python_choice import PythonChoice
    from tpuctl.model.capacity.forecast import Forecast
    from tpuctl.model.jobs.comparison import Comparison
    from tpuctl.model.jobs.explanation import Explanation
    from tpuctl.model.jobs.job import JobKind, JobRecord, JobStatus, JobSummary
    from tpuctl.model.jobs.profile import Profile
    from tpuctl.model.jobs.queue import Queued
    from tpuctl.model.jobs.report import RunReport
    from tpuctl.model.jobs.sweep import SweepEstimate
    from tpuctl.model.logs.log_range import LogRange
    from tpuctl.model.stack.stack import Stack
    from tpuctl.model.status.inventory import InventoryItem, ResourceKind
    from tpuctl.model.status.snapshot import Snapshot, StackStatus
    from tpuctl.model.status.status import Down, NodeStatus
    from tpuctl.model.troubleshooting.command_record import RecordCall
    from tpuctl.model.workers.copy_path import CopyRequest
    from tpuctl.preflight.findings import Report
    from tpuctl.preflight.rehearsal.rehearsal_report import Rehearsal
    from tpuctl.remote.keys import KeyPair
    from tpuctl.remote.openssh import Host
    from tpuctl.remote.ssh import SshTransport

__all__ = ["Tpuctl"]

HOST_TUNNEL = "tpuctl.api.host_tunnel"  # not imported: it imports this module


class Tpuctl:
    """One stack. Every method may be called again at any time.

    Without a stack file, the name and project id are enough to inspect a stack and take it down:
    `Tpuctl(name="bert", project="my-project")`.
    """

    # Whether log lines of several workers are prefixed with the worker. Event readers turn it off.
    names_workers: bool = True

    def __init__(
        self,
        stack_file: str | Path = "tpuctl.yaml",
        *,
        name: str = "",
        project: str = "",
        cloud: Literal["google", "local"] | str = "google",
        emit: Emit = ignore,
    ) -> None:
        name_user()
        self.stack_file = Path(stack_file)
        self.bare = (name, project) if name or project else None
        self.cloud_name = cloud
        self.emit = emit
        # Decides whether uv may download a Python that the local cloud's machines need, or what is
        # large and a job brings.
        self.may_install: Callable[[str], bool] = lambda question: False
        self.record_call: RecordCall | None = None  # receives each call of the cloud

    # The context, created on first use -----------------------------------------------------

    @cached_property
    def stack(self) -> Stack:
        """The stack read from its file; methods that create resources also `require_valid` it.

        Raises InvalidStack for an invalid file.
        """
        from tpuctl.model.stack.stack import minimal_stack, read_stack

        return minimal_stack(*self.bare) if self.bare else read_stack(self.stack_file)

    @cached_property
    def project(self) -> str:
        """The project id, also if only a project was given. Raises Usage, InvalidStack."""
        from tpuctl.model.stack.stack import minimal_stack

        if self.bare and not self.bare[0]:
            return minimal_stack("any", self.bare[1]).project
        return self.stack.project

    @cached_property
    def endpoint(self) -> Endpoint:
        """The API endpoint; starts the local cloud if it is not running."""
        from tpuctl.flows.local_cloud import endpoint_of

        return endpoint_of(self.cloud_name, self.emit)

    @cached_property
    def cloud(self) -> Cloud:
        from tpuctl.cloud.clients import Cloud

        cloud = Cloud(self.endpoint, self.project, record=self.record_call)
        if self.bare is None:
            cloud.hint_facts = {"type": self.stack.file.tpu.type}
        return cloud

    @cached_property
    def keys(self) -> Keys:
        from tpuctl.flows.context import Keys

        return Keys(self.stack)

    @property
    def key(self) -> KeyPair:
        """The SSH key named in the stack file, otherwise tpuctl's own, created if missing."""
        return self.keys.pair

    @property
    def context(self) -> Context:
        """The context passed to flows. Starts the local cloud if it is the one in use."""
        from tpuctl.flows.context import (
            Context,
            controller_name,
            controller_zone,
            job_cloud,
        )
        from tpuctl.flows.local_cloud import prepare_runtime

        context = Context(
            replace(self.stack, controller_zone=controller_zone()),
            self.cloud,
            self.keys,
            self.emit,
            has_file=self.bare is None,
            controller=controller_name(),
            jobs_cloud=job_cloud(self.cloud_name),
            may_download=self.may_install,
        )
        if not self.endpoint.is_local:
            return context
        prepare = partial(prepare_runtime, may_install=self.may_install)
        return replace(context, prepare_image=prepare)

    @property
    def store(self) -> ObjectStore:
        """The objects of the stack's bucket."""
        return self.context.store

    def with_worker_names(self, part: LogRange | None) -> LogRange:
        """The range of a log, or all of it, with `names_workers` applied."""
        from tpuctl.model.logs.log_range import WHOLE_LOG

        return replace(part or WHOLE_LOG, is_named=self.names_workers)

    # The stack -----------------------------------------------------------------------------

    async def plan(self, zone: str | None = None, *, race: bool = False) -> Prepared:
        """What `up` would do, in a zone. Reads the cloud, changes nothing. Raises InvalidStack."""
        from tpuctl.flows.stack.plan import plan

        self.stack.require_valid()  # before starting the local cloud
        candidate = None if zone is None else self.stack.in_zone(zone).candidate
        return await plan(self.context, candidate, race=race)

    def forecast(self, traces: Sequence[str] = (), hours: float | None = None) -> Forecast:
        """What to expect of a job with so many hours of work, from remembered requests and traces
        of capacity (`FILE` or `ZONE=FILE`). `report` compares it with the job. Raises Usage."""
        from tpuctl.flows.stack.forecast import forecast_up

        self.stack.require_valid()
        return forecast_up(self.stack, self.cloud_name, traces, hours)

    def job_python(self) -> PythonChoice:
        """The Python of jobs with the files of the stack's folder, without a script's metadata.

        Asks the package index if it has to choose. Raises Usage and Refused.
        """
        from tpuctl.flows.packages.job_python import stack_python

        return stack_python(self.stack, self.cloud_name)

    async def up(
        self,
        confirm: Callable[[Prepared], None] | None = None,
        *,
        race: bool = False,
        new_limits: bool = False,
    ) -> Prepared:
        """Bring the stack up. `confirm` receives the plan first; it may raise to cancel.

        `race` requests the TPU in all zones of the stack file at once, and keeps the first that is
        granted. `new_limits` counts what limits.max_cost and max_hours limit from zero. Raises
        TimedOut if nothing is left of them.
        """
        from tpuctl.flows.stack.activity import reported
        from tpuctl.flows.stack.up import up

        self.stack.require_valid()  # before starting the local cloud
        if self.context.controller is None:
            return await up(self.context, confirm, race=race, new_limits=new_limits)
        async with reported(self.context) as context:  # the work has no terminal
            return await up(context, confirm, race=race, new_limits=new_limits)

    async def provision(self, prepared: Prepared) -> Prepared:
        """Apply a plan. Machines may not be reachable yet when it returns. Raises Conflict, with
        everything deleted again, if the stack was taken down at the same time."""
        from tpuctl.flows.stack.up import provision

        return await provision(self.context, prepared)

    async def status(self) -> StackStatus:
        """What exists in the cloud now. Raises the error of what could not be listed."""
        from tpuctl.flows.reports.status import status

        return await status(self.context)

    async def snapshot(self) -> Snapshot:
        """The stack and its jobs now, read from the cloud and the bucket."""
        from tpuctl.flows.reports.status import take_snapshot

        return await take_snapshot(self.context)

    def watch(self, seconds: float) -> AsyncIterator[Snapshot]:
        """Yield a snapshot every `seconds`, forever, with log progress read from the machines.

        The first snapshot raises its errors; later ones report them next to the last good state.
        """
        from tpuctl.flows.reports.status import watch

        return watch(self.context, seconds)

    def dashboard(self, seconds: float) -> Dashboard:
        """What a page shows of the stack and its jobs, read again after `seconds`."""
        from tpuctl.flows.reports.dashboard import Dashboard

        return Dashboard(self.context, seconds)

    async def down(
        self,
        *,
        delete_bucket: bool = False,
        confirm: Callable[[Teardown], None] | None = None,
    ) -> Down:
        """Take the stack down, then check what remains of it."""
        from tpuctl.flows.stack.down import down

        return await down(self.context, delete_bucket=delete_bucket, confirm=confirm)

    async def orphans(
        self, on_unlisted: Callable[[type[ResourceKind], TpuctlError], None] | None = None
    ) -> list[InventoryItem]:
        """Everything in the project that any stack created, in every zone.

        The error of a kind that cannot be listed is passed to `on_unlisted`, and raised without it
        if the kind is billable.
        """
        from tpuctl.flows.stack.orphans import orphans

        return await orphans(self.cloud, self.emit, on_unlisted)

    # Jobs ----------------------------------------------------------------------------------

    def check(
        self, script: str | Path, *, form: JobKind = "script", folder: Path | None = None
    ) -> Report:
        """Check a script or module statically for the stack's TPU.

        Runs no code and uses no network. `submission` rejects a script with `errors`.
        """
        from tpuctl.flows.jobs.check import check

        return check(self.stack, script, form, folder)

    def submission(
        self,
        script: str | Path,
        arguments: Sequence[str] = (),
        *,
        form: JobKind = "script",
        folder: Path | None = None,
        check: bool = True,
        python: str = "",
        timeout: float | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> Submission:
        """Prepare a submission, without access to Google. Raises Usage, or Refused if the check
        finds errors.

        `script` is the path of a script or, depending on `form`, a module name or the first word
        of a command, run in `folder`, which is uploaded (default: the current folder). `python` is
        the job's, instead of `job.python` in the stack file. The job is stopped after `timeout`
        seconds, counted over all attempts. `secrets` maps further secrets to their source, like
        `job.secrets` in the stack file: {"HF_TOKEN": "env"}.
        """
        from tpuctl.flows.jobs.run import prepare

        return prepare(
            self.stack,
            script,
            arguments,
            cloud=self.cloud_name,
            emit=self.emit,
            form=form,
            folder=folder,
            check=check,
            python=python,
            timeout=timeout,
            secrets=secrets,
        )

    async def rehearse(self, submission: Submission, options: RehearsalOptions) -> Rehearsal:
        """Run the submission twice for a few steps on this machine, and report what would fail.

        Nothing reaches Google: gs:// paths go to the local cloud, which is started if necessary.
        Raises Refused for a command that is not Python, and for a TensorFlow version without an
        image.
        """
        from tpuctl.flows.preflight.rehearse import rehearse

        return await rehearse(self.stack, submission, options, self.emit, self.may_install)

    async def export_jobset(
        self,
        script: str | Path,
        arguments: Sequence[str] = (),
        settings: JobSetSettings | None = None,
        name: str = "",
        *,
        form: JobKind = "script",
        check: bool = True,
        python: str = "",
        upload: bool = True,
    ) -> ExportedJobSet:
        """The same job as `submission` for GKE, as a manifest, with its bundle in the bucket.

        Without `upload`, no request is sent, and the manifest's bundle may not exist.
        """
        from tpuctl.flows.jobs.export import export_jobset, exportable
        from tpuctl.flows.jobs.run import prepare
        from tpuctl.jobs.jobset import JobSetSettings

        stack = self.stack.with_python(python)
        submission = prepare(
            exportable(stack),
            script,
            arguments,
            cloud=self.cloud_name,
            emit=self.emit,
            form=form,
            check=check,
        )
        return await export_jobset(
            stack,
            submission,
            settings or JobSetSettings(),
            name,
            store=self.store if upload else None,
            emit=self.emit,
        )

    async def submit(
        self,
        script: str | Path,
        arguments: Sequence[str] = (),
        *,
        form: JobKind = "script",
        folder: Path | None = None,
        check: bool = True,
        python: str = "",
    ) -> JobRecord:
        """Check the script, upload its folder and start it on the workers; see `submission`."""
        return await self.start(
            self.submission(script, arguments, form=form, folder=folder, check=check, python=python)
        )

    async def start(self, submission: Submission) -> JobRecord:
        """Upload a submission and start it on the workers. Raises Conflict if another job runs
        there: a TPU runs one at a time."""
        from tpuctl.flows.jobs.run import start

        return await start(self.context, submission)

    async def wait_until_running(self, record: JobRecord) -> int | None:
        """Wait until the job runs on all its workers. If it fails on one, emit that worker's log
        and the error, and return the exit code."""
        from tpuctl.flows.jobs.run import wait_until_running

        return await wait_until_running(self.context, record)

    async def follow(
        self,
        record: JobRecord,
        *,
        all_workers: bool = False,
        part: LogRange | None = None,
        show: bool = True,
    ) -> int:
        """Emit the job's log until it ends; return its exit code.

        Emits the log of the first worker byte for byte, or of all workers line by line with their
        names, or a `part` of it, for the record's attempt and all later ones. After a preemption
        or machine failure the next attempt is started here, within the job's retries, on a
        recreated stack if necessary. Cancelling does not stop the job.
        """
        from tpuctl.flows.jobs.recover import follow_to_end

        return await follow_to_end(
            self.context,
            record,
            all_workers=all_workers,
            show=show,
            part=self.with_worker_names(part),
        )

    async def follow_interactively(
        self, record: JobRecord, *, all_workers: bool = False, part: LogRange | None = None
    ) -> int:
        """`follow` in a terminal: Ctrl-C detaches from the job, and a second one stops it."""
        from tpuctl.flows.jobs.interactive_follow import follow_interactive
        from tpuctl.flows.signals import SignalQueue

        part = self.with_worker_names(part)
        with SignalQueue() as presses:
            followed = await follow_interactive(
                self.context, record, presses, all_workers=all_workers, part=part
            )
        return followed.exit_code

    async def run(
        self,
        script: str | Path,
        arguments: Sequence[str] = (),
        *,
        up: bool = False,
        down: bool = False,
        each: Mapping[str, Sequence[object]] | None = None,
    ) -> int:
        """Submit a script, follow it to its end and return the job's exit code.

        `up` brings the stack up first; `down` takes it down afterwards, even after an error.
        Raises Conflict if the job succeeded but billable resources remain.

        `each` runs one job per combination of values, one after another, with the values added to
        the arguments: {"lr": [1e-3, 1e-4]} adds --lr=0.001, then --lr=0.0001. The exit code is
        then that of the first job that failed.
        """
        from tpuctl.flows.jobs.run import run
        from tpuctl.flows.jobs.run_state import RunOptions
        from tpuctl.model.jobs.sweep import combinations

        values = {name: list(map(str, options)) for name, options in (each or {}).items()}
        sweep = combinations(values, arguments) if values else ()
        submission = self.submission(script, arguments)  # rejected before starting the local cloud
        options = RunOptions(up=up, down=down, each=sweep, part=self.with_worker_names(None))
        return await run(self.context, submission, options)

    async def run_interactively(
        self, submission: Submission, options: RunOptions, state: RunState
    ) -> int:
        """`run` in a terminal: Ctrl-C detaches from the job or stops it. Keeps `state` current."""
        from tpuctl.flows.jobs.run import run_interactively

        options = replace(options, part=self.with_worker_names(options.part))
        return await run_interactively(self.context, submission, options, state)

    async def run_detached(
        self, submission: Submission, options: RunOptions, state: RunState
    ) -> JobRecord:
        """Bring the stack up if requested, and start the job. Keeps `state` current."""
        from tpuctl.flows.jobs.run import up_and_start
        from tpuctl.flows.machines.workers import kept_connections

        async with kept_connections(self.context) as connected:
            return await up_and_start(connected, submission, options, state)

    async def enqueue(
        self,
        submission: Submission,
        options: RunOptions | None = None,
        queued: Queued | None = None,
    ) -> list[JobRecord]:
        """Append the job, or one for each of `options.each`, to the stack's queue, which its
        controller runs without this computer, on `queued.parallel` TPUs at once; with `options.up`,
        bring up what the controller needs first. Raises Usage if the stack has no controller."""
        from tpuctl.flows.jobs.run_state import RunOptions
        from tpuctl.flows.queue.enqueue import enqueue
        from tpuctl.model.jobs.queue import Queued

        return await enqueue(self.context, submission, options or RunOptions(), queued or Queued())

    async def run_queue(self) -> int:
        """Run the stack's queued jobs here, in their order, until none is left, and take the
        stack down if one was submitted with that; return how many there were. The controller does
        the same; each job is started once."""
        from tpuctl.flows.queue.work import run_queue

        return await run_queue(self.context)

    async def hand_over_up(
        self, confirm: Callable[[Prepared], None] | None = None, *, race: bool = False
    ) -> Stack:
        """Bring the stack up without its TPU, and have its controller create that. Raises Usage
        if the stack has no controller."""
        from tpuctl.flows.queue.enqueue import hand_over_up

        return await hand_over_up(self.context, confirm, race=race)

    async def estimate_sweep(
        self, submission: Submission, count: int, tpus: int = 1
    ) -> SweepEstimate:
        """How long `count` jobs may take on so many TPUs at once, by earlier ones, and what that
        costs."""
        from tpuctl.flows.reports.sweep import estimate

        return await estimate(self.context, submission, count, min(count, tpus))

    async def sweep_reports(self, jobs: Sequence[str]) -> list[RunReport]:
        """The reports of these jobs, as far as they can be read."""
        from tpuctl.flows.reports.sweep import reports

        return await reports(self.context, jobs)

    async def log(
        self, record: JobRecord, *, all_workers: bool = False, part: LogRange | None = None
    ) -> None:
        """Emit what an attempt has logged so far, or a part of it."""
        from tpuctl.flows.jobs.logs import emit_log

        await emit_log(
            self.context, record, all_workers=all_workers, part=self.with_worker_names(part)
        )

    async def job(self, name: str = "", attempt: int | None = None) -> JobRecord:
        """A job by its id or the last word of it; by default the running job, or else the latest.

        The record is of the last attempt, or of attempt number `attempt`; Usage if it is unknown.
        Raises NotFound, and Conflict if none is named and several are running.
        """
        from tpuctl.flows.jobs.jobs import find_job

        return await find_job(self.context, name, attempt)

    async def jobs(self) -> list[JobSummary]:
        """All jobs of the stack, latest first; empty if the bucket does not exist."""
        from tpuctl.flows.jobs.jobs import jobs

        return await jobs(self.context)

    async def stop(self, record: JobRecord, *, grace: float = 30.0) -> JobStatus:
        """Stop the job on every worker: SIGTERM, then SIGKILL after `grace` seconds."""
        from tpuctl.flows.jobs.follow import stop_job

        return await stop_job(self.context, record, grace=grace)

    async def profile(
        self, record: JobRecord, seconds: float = 5.0, *, all_workers: bool = False
    ) -> Profile:
        """Trace the running job on its first worker, or all; the profile is in the bucket."""
        from tpuctl.flows.jobs.profile import profile

        return await profile(self.context, record, seconds, all_workers=all_workers)

    async def explain(self, record: JobRecord) -> Explanation:
        """Why the record's attempt ended; works after its machines are gone."""
        from tpuctl.flows.reports.explain import explain

        return await explain(self.context, record)

    async def report(self, record: JobRecord) -> RunReport:
        """Everything known about the job: attempts, cost, metrics; read from the bucket."""
        from tpuctl.flows.reports.report import report

        return await report(self.context, record)

    async def compare(self, names: Sequence[str]) -> Comparison:
        """What differs between jobs, by their ids or last words. Raises Usage, NotFound."""
        from tpuctl.flows.reports.compare import compare

        return await compare(self.context, names)

    # Machines ------------------------------------------------------------------------------

    async def node(self) -> NodeStatus:
        """The stack's node, the first of several. Raises NotFound."""
        from tpuctl.flows.machines.workers import nodes_of

        return (await nodes_of(self.stack, self.cloud))[0]

    async def transports(self) -> dict[int, SshTransport]:
        """A connection to each worker, opened on first use; workers are numbered across nodes."""
        from tpuctl.flows.machines.workers import transports

        return await transports(self.context)

    def connections(
        self, *, required: bool = True
    ) -> AbstractAsyncContextManager[dict[int, SshTransport]]:
        """Connections to the workers, closed on exit; empty without a node, unless `required`."""
        from tpuctl.flows.machines.workers import connections

        return connections(self.context, required=required)

    async def ssh_command(self, worker: int, line: str = "") -> list[str]:
        """The `ssh` command line that opens a shell on a worker, or runs a shell command there."""
        from tpuctl.api import tunnel
        from tpuctl.flows.machines.ssh import ssh_command

        through = tunnel.command(self.cloud_name)
        return await ssh_command(self.context, worker, line, tunnel=through)

    async def ssh_hosts(self) -> list[Host]:
        """A host for ssh's configuration for each worker, and for the controller."""
        from tpuctl.flows.machines.ssh import ssh_hosts

        return await ssh_hosts(self.context, HOST_TUNNEL, self.cloud_name)

    async def run_on_workers(self, line: str, worker: int | None = None) -> list[CommandResult]:
        """Run a shell command on all workers in parallel, or on one; results in order of finish.

        Its output is emitted. An unreachable worker is reported, and the others continue.
        """
        from tpuctl.flows.machines.workers import connect_selected, run_on_workers

        async with connect_selected(self.context, worker) as transports:
            return await run_on_workers(line, transports, self.emit)

    async def copy(self, request: CopyRequest, *, recursive: bool = False) -> list[CopyResult]:
        """Copy files between this machine and workers, atomically per file; results per worker."""
        from tpuctl.flows.machines.cp import copy
        from tpuctl.flows.machines.workers import connect_selected

        async with connect_selected(self.context, request.worker) as transports:
            return await copy(request, transports, self.emit, recursive=recursive)

    @asynccontextmanager
    async def notebook(
        self, folder: Path | None = None, port: int | None = None, *, python: str = ""
    ) -> AsyncIterator[OpenNotebook]:
        """JupyterLab on worker 0, forwarded to this machine while in the block.

        It is started with the files in `folder` (default: the stack file's), unless it runs
        already; it continues afterwards.
        """
        from tpuctl.flows.jobs.notebook import notebook_submission, open_notebook, start_notebook
        from tpuctl.flows.jobs.run import start, wait_until_running

        submission = notebook_submission(self.stack, folder, self.cloud_name, python)
        record = await start_notebook(self.context, submission, start, wait_until_running)
        is_local = self.endpoint.is_local
        async with open_notebook(self.context, record, port, shares_loopback=is_local) as server:
            yield server

    @asynccontextmanager
    async def forward_ports(
        self, ports: Sequence[PortMapping], worker: int = 0
    ) -> AsyncIterator[None]:
        """Forward ports of this machine's loopback to the worker's ports while in the block."""
        from tpuctl.flows.machines.forward import forward_ports
        from tpuctl.flows.machines.workers import connect_selected

        is_local = self.endpoint.is_local  # its machines share this one's loopback
        async with (
            connect_selected(self.context, worker) as transports,
            forward_ports(ports, transports[worker], self.emit, shares_loopback=is_local),
        ):
            yield
