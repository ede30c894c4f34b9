"""`Tpuctl`: one stack, as programs handle it. Each method calls one flow with the context."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tpuctl.model.events import Emit, ignore

if TYPE_CHECKING:
    from tpuctl.cloud.clients import Cloud
    from tpuctl.cloud.endpoints import Endpoint
    from tpuctl.cloud.objects import ObjectStore
    from tpuctl.flows.context import Context, Keys
    from tpuctl.flows.cp import CopyResult
    from tpuctl.flows.down import Teardown
    from tpuctl.flows.forward import PortMapping
    from tpuctl.flows.plan import Prepared
    from tpuctl.flows.submission import Submission
    from tpuctl.flows.workers import CommandResult
    from tpuctl.model.copy_path import CopyRequest
    from tpuctl.model.explanation import Explanation
    from tpuctl.model.inventory import InventoryItem
    from tpuctl.model.job import Form, JobRecord, JobStatus, JobSummary
    from tpuctl.model.log_range import LogRange
    from tpuctl.model.report import RunReport
    from tpuctl.model.snapshot import Snapshot, StackStatus
    from tpuctl.model.stack import Stack
    from tpuctl.model.status import Down, NodeStatus
    from tpuctl.preflight.findings import Report
    from tpuctl.remote.keys import KeyPair
    from tpuctl.remote.ssh import SshTransport

__all__ = ["Tpuctl"]


class Tpuctl:
    """One stack, seen from this machine. Every method may be repeated at any time.

    Without a stack file, from its name and its project's id alone, a stack can be looked at and
    taken away: `Tpuctl(name="bert", project="my-project")`.
    """

    # Whether lines of several workers' logs carry their names. Who reads events needs none.
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
        self.stack_file = Path(stack_file)
        self.bare = (name, project) if name or project else None
        self.cloud_name = cloud
        self.emit = emit
        # Asked whether uv may download a Python that the local cloud's machines need.
        self.may_install: Callable[[str], bool] = lambda question: False

    # The context, made when it is first needed ---------------------------------------------

    @cached_property
    def stack(self) -> Stack:
        """The stack file, read. What makes something of it has it checked: `require_valid`.

        Raises InvalidStack for a file that does not say what a stack is.
        """
        from tpuctl.model.stack import minimal_stack, read_stack

        return minimal_stack(*self.bare) if self.bare else read_stack(self.stack_file)

    @cached_property
    def project(self) -> str:
        """The project's id; of a program that named no stack too. Raises Usage, InvalidStack."""
        from tpuctl.model.stack import minimal_stack

        if self.bare and not self.bare[0]:
            return minimal_stack("any", self.bare[1]).project
        return self.stack.project

    @cached_property
    def endpoint(self) -> Endpoint:
        """Where the APIs are; the local cloud is started when it does not run."""
        from tpuctl.api.local_cloud import endpoint_of

        return endpoint_of(self.cloud_name, self.emit)

    @cached_property
    def cloud(self) -> Cloud:
        from tpuctl.cloud.clients import Cloud

        made = Cloud(self.endpoint, self.project)
        if self.bare is None:
            made.hint_facts = {"type": self.stack.file.tpu.type}
        return made

    @cached_property
    def keys(self) -> Keys:
        from tpuctl.flows.context import Keys

        return Keys(self.stack)

    @property
    def key(self) -> KeyPair:
        """The SSH key: the one that the stack file names, else tpuctl's own, made when missing."""
        return self.keys.pair

    @property
    def context(self) -> Context:
        """What flows are handed. Starts the local cloud where that is spoken to."""
        from tpuctl.api.local_cloud import prepare_image
        from tpuctl.flows.context import Context, controller_name, job_cloud

        context = Context(
            self.stack,
            self.cloud,
            self.keys,
            self.emit,
            has_file=self.bare is None,
            controller=controller_name(),
            jobs_cloud=job_cloud(self.cloud_name),
        )
        if not self.endpoint.is_local:
            return context
        return replace(context, prepare_image=partial(prepare_image, may_install=self.may_install))

    @property
    def store(self) -> ObjectStore:
        """The objects of the stack's bucket."""
        return self.context.store

    def with_worker_names(self, part: LogRange | None) -> LogRange:
        """A part of a log, or all of it, with the names of workers or without."""
        from tpuctl.model.log_range import WHOLE_LOG

        return replace(part or WHOLE_LOG, is_named=self.names_workers)

    # The stack -----------------------------------------------------------------------------

    async def plan(self, zone: str | None = None) -> Prepared:
        """What `up` would do, asking the cloud but changing nothing. Raises InvalidStack."""
        from tpuctl.flows.plan import plan

        self.stack.require_valid()  # before a local cloud is started for it
        return await plan(self.context, zone)

    async def up(self, confirm: Callable[[Prepared], None] | None = None) -> Prepared:
        """Bring the stack up. `confirm` sees the plan first and raises to refuse it."""
        from tpuctl.flows.up import up

        self.stack.require_valid()  # before a local cloud is started for it
        return await up(self.context, confirm)

    async def provision(self, prepared: Prepared) -> Prepared:
        """Carry a plan out. The machines may not answer yet after it. Raises Conflict, with
        everything taken away again, when the stack was taken down meanwhile."""
        from tpuctl.flows.up import provision

        return await provision(self.context, prepared)

    async def status(self) -> StackStatus:
        """What exists, asked of the cloud."""
        from tpuctl.flows.status import status

        return await status(self.context)

    async def snapshot(self) -> Snapshot:
        """The stack and its jobs as they are now, asked of the cloud and the bucket."""
        from tpuctl.flows.status import take_snapshot

        return await take_snapshot(self.context)

    def watch(self, seconds: float) -> AsyncIterator[Snapshot]:
        """The same every so many seconds, without an end, with news from the machines themselves.

        Raises what keeps the first look from telling anything; later problems are told with what
        was seen last.
        """
        from tpuctl.flows.status import watch

        return watch(self.context, seconds)

    async def down(
        self,
        *,
        delete_bucket: bool = False,
        confirm: Callable[[Teardown], None] | None = None,
    ) -> Down:
        """Take the stack away, then ask the cloud what is left of it."""
        from tpuctl.flows.down import down

        return await down(self.context, delete_bucket=delete_bucket, confirm=confirm)

    async def orphans(self) -> list[InventoryItem]:
        """Everything in the project that any stack made, in every zone."""
        from tpuctl.flows.orphans import orphans

        return await orphans(self.cloud, self.emit)

    # Jobs ----------------------------------------------------------------------------------

    def check(
        self, script: str | Path, *, form: Form = "script", folder: Path | None = None
    ) -> Report:
        """What the static check finds in a script or module, for the stack's TPU.

        Nothing of it is run; no network. `errors` of the report are what `submission` refuses.
        """
        from tpuctl.flows.check import check

        return check(self.stack, script, form, folder)

    def submission(
        self,
        script: str | Path,
        arguments: Sequence[str] = (),
        *,
        form: Form = "script",
        folder: Path | None = None,
        check: bool = True,
        timeout: float | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> Submission:
        """What would be submitted, without any network. Raises Usage or Refused where the check
        finds that it cannot run.

        `script` is the path of a script, else as `form` says a module's name or a command's first
        word; those are of `folder`, which is shipped: the current one by default. After `timeout`
        seconds the machines end it, all its attempts taken together. `secrets` tells where further
        ones come from, by name, as `job.secrets` of the stack file does: {"HF_TOKEN": "env"}.
        """
        from tpuctl.flows.run import prepare

        return prepare(
            self.stack,
            script,
            arguments,
            cloud=self.cloud_name,
            emit=self.emit,
            form=form,
            folder=folder,
            check=check,
            timeout=timeout,
            secrets=secrets,
        )

    async def submit(
        self,
        script: str | Path,
        arguments: Sequence[str] = (),
        *,
        form: Form = "script",
        folder: Path | None = None,
        check: bool = True,
    ) -> JobRecord:
        """Check it, bundle its folder, ship that, start it on its workers; see `submission`."""
        return await self.start(
            self.submission(script, arguments, form=form, folder=folder, check=check)
        )

    async def start(self, submission: Submission) -> JobRecord:
        """Bundle and ship what `submission` made, start it on its workers."""
        from tpuctl.flows.run import start

        return await start(self.context, submission)

    async def wait_until_running(self, record: JobRecord) -> int | None:
        """Wait until the job runs on all its workers. Where it has failed on one instead, its log
        and what went wrong are emitted, and its exit code is the answer."""
        from tpuctl.flows.run import wait_until_running

        return await wait_until_running(self.context, record)

    async def follow(
        self,
        record: JobRecord,
        *,
        all_workers: bool = False,
        part: LogRange | None = None,
        show: bool = True,
    ) -> int:
        """Emit the job's log until it has ended; its exit code.

        The log of the first worker byte for byte, or of all workers, line by line with their
        names, or a `part` of it; of the record's attempt and of all that follow it: where machines
        failed, or were taken away, another is started here within the job's retries, on a stack
        brought up anew if need be. Cancelling leaves the job alone.
        """
        from tpuctl.flows.recover import follow_to_end

        return await follow_to_end(
            self.context,
            record,
            all_workers=all_workers,
            show=show,
            part=self.with_worker_names(part),
        )

    async def run(
        self,
        script: str | Path,
        arguments: Sequence[str] = (),
        *,
        up: bool = False,
        down: bool = False,
    ) -> int:
        """Submit a script and follow it to its end; the job's exit code.

        With `up` the stack is brought up first; with `down` it is taken down afterwards, whatever
        happened. Raises Conflict when the job succeeded and something that costs money is left.
        """
        from tpuctl.flows.run import run

        submission = self.submission(script, arguments)  # refused before a local cloud is started
        return await run(
            self.context, submission, up=up, down=down, part=self.with_worker_names(None)
        )

    async def log(
        self, record: JobRecord, *, all_workers: bool = False, part: LogRange | None = None
    ) -> None:
        """Emit what an attempt has logged until now, or a part of it."""
        from tpuctl.flows.log_output import emit_log

        await emit_log(
            self.context, record, all_workers=all_workers, part=self.with_worker_names(part)
        )

    async def job(self, name: str = "", attempt: int | None = None) -> JobRecord:
        """A job by its id or its word; the latest when none is given. Raises NotFound.

        As its last attempt runs it, or that of this number. Raises Usage when there is none.
        """
        from tpuctl.flows.jobs import find_job

        return await find_job(self.context, name, attempt)

    async def jobs(self) -> list[JobSummary]:
        """All jobs of the stack, the latest first; none where there is no bucket."""
        from tpuctl.flows.jobs import jobs

        return await jobs(self.context)

    async def stop(self, record: JobRecord, *, grace: float = 30.0) -> JobStatus:
        """End the job on every worker: SIGTERM, then SIGKILL after so many seconds."""
        from tpuctl.flows.follow import stop_job

        return await stop_job(self.context, record, grace=grace)

    async def explain(self, record: JobRecord) -> Explanation:
        """Why the job, as an attempt of it ran it, ended; also after its machines are gone."""
        from tpuctl.flows.explain import explain

        return await explain(self.context, record)

    async def report(self, record: JobRecord) -> RunReport:
        """All that is known of the job: attempts, cost, curves; from its bucket."""
        from tpuctl.flows.report import report

        return await report(self.context, record)

    # Machines ------------------------------------------------------------------------------

    async def node(self) -> NodeStatus:
        """The stack's node, the first of several. Raises NotFound when there is none."""
        from tpuctl.flows.workers import nodes_of

        return (await nodes_of(self.stack, self.cloud))[0]

    async def transports(self) -> dict[int, SshTransport]:
        """A connection to each worker, made when first used; numbered through all nodes."""
        from tpuctl.flows.workers import transports

        return await transports(self.context)

    def connections(
        self, *, required: bool = True
    ) -> AbstractAsyncContextManager[dict[int, SshTransport]]:
        """Transports to the node's workers, closed at the end; none where there is no node."""
        from tpuctl.flows.workers import connections

        return connections(self.context, required=required)

    async def ssh_command(self, worker: int, line: str = "") -> list[str]:
        """The command line of the `ssh` program that opens a shell on a worker, or runs a line."""
        from tpuctl.api import tunnel
        from tpuctl.flows.ssh import ssh_command

        through = tunnel.command(self.cloud_name)
        return await ssh_command(self.context, worker, line, tunnel=through)

    async def run_on_workers(self, line: str, worker: int | None = None) -> list[CommandResult]:
        """Run a shell's line on every worker at once, or on one; how it ended, the first first.

        What it writes is emitted. A worker that cannot be reached is told, and the others go on.
        """
        from tpuctl.flows.workers import connect_selected, run_on_workers

        async with connect_selected(self.context, worker) as transports:
            return await run_on_workers(line, transports, self.emit)

    async def copy(self, request: CopyRequest, *, recursive: bool = False) -> list[CopyResult]:
        """Copy between this machine and workers, whole files or none; what each one was sent."""
        from tpuctl.flows.cp import copy
        from tpuctl.flows.workers import connect_selected

        async with connect_selected(self.context, request.worker) as transports:
            return await copy(request, transports, self.emit, recursive=recursive)

    @asynccontextmanager
    async def forward_ports(
        self, ports: Sequence[PortMapping], worker: int = 0
    ) -> AsyncIterator[None]:
        """Within, connections to ports of this machine's loopback lead to the worker's ports."""
        from tpuctl.flows.forward import forward_ports
        from tpuctl.flows.workers import connect_selected

        is_local = self.endpoint.is_local  # its machines share this one's loopback
        async with (
            connect_selected(self.context, worker) as transports,
            forward_ports(ports, transports[worker], self.emit, shares_loopback=is_local),
        ):
            yield
