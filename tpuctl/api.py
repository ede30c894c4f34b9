"""The small Python interface: what the command line does, for programs. Wires everything, lazily.

import asyncio
from tpuctl.api import Tpuctl

stack = Tpuctl("tpuctl.yaml", cloud="local")
asyncio.run(stack.up())
code = asyncio.run(stack.run("train.py"))
asyncio.run(stack.down(delete_bucket=True))
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tpuctl.errors import NotFound, TpuctlError, Unreachable, Usage
from tpuctl.model.events import (
    Emit,
    Event,
    LogChunk,
    Outcome,
    StepFinished,
    StepProgress,
    StepStarted,
    ignore,
)

if TYPE_CHECKING:
    from tpuctl.cloud.clients import Cloud
    from tpuctl.cloud.endpoints import Endpoint
    from tpuctl.cloud.objects import ObjectStore
    from tpuctl.engine.resource import Report, Resource
    from tpuctl.flows.provision import Teardown
    from tpuctl.model.job import JobRecord, JobStatus, JobSummary
    from tpuctl.model.plan import Plan
    from tpuctl.model.stack import Stack
    from tpuctl.model.status import NodeStatus, Remaining
    from tpuctl.remote.keys import KeyPair
    from tpuctl.remote.ssh import SshTransport
    from tpuctl.remote.transport import Transport

__all__ = ["Down", "Prepared", "StackStatus", "Tpuctl"]


@dataclass(frozen=True)
class Prepared:
    """A plan for `up` with what it needs to be carried out."""

    stack: Stack
    plan: Plan
    resources: Sequence[Resource]


@dataclass(frozen=True)
class Down:
    """What `down` did: the proof that it ends with."""

    remaining: tuple[Remaining, ...]

    @property
    def leaks(self) -> tuple[Remaining, ...]:
        """What still costs money and was not asked to stay."""
        return tuple(one for one in self.remaining if one.state == "remains" and one.is_billable)


class _Prefixing:
    """Puts the worker's name before each line of several workers' logs."""

    def __init__(self, emit: Emit, workers: Sequence[int]) -> None:
        from tpuctl.jobs.logs import LinePrefixer

        width = len(str(max(workers)))
        self._emit = emit
        self._prefixers = {one: LinePrefixer(f"[worker {one:>{width}}] ") for one in workers}

    def __call__(self, event: Event) -> None:
        if not isinstance(event, LogChunk):
            self._emit(event)
        elif data := self._prefixers[event.worker].feed(event.data):
            self._emit(LogChunk(event.worker, data, event.offset))

    def finish(self) -> None:
        for worker, prefixer in self._prefixers.items():
            if data := prefixer.finish():
                self._emit(LogChunk(worker, data, 0))


@dataclass(frozen=True)
class StackStatus:
    """What exists of a stack."""

    stack: Stack
    nodes: tuple[NodeStatus, ...]
    bucket: str | None  # its name, None where there is none


class Tpuctl:
    """One stack, seen from this machine. Every method may be repeated at any time."""

    def __init__(
        self,
        stack_file: str | Path,
        *,
        cloud: Literal["google", "local"] | str = "google",
        emit: Emit = ignore,
    ) -> None:
        self.stack_file = Path(stack_file)
        self.cloud_name = cloud
        self.emit = emit

    @cached_property
    def stack(self) -> Stack:
        """The stack file, read and checked. Raises InvalidStack."""
        from tpuctl.model.stack import load_stack

        return load_stack(self.stack_file)

    @cached_property
    def endpoint(self) -> Endpoint:
        """Where the APIs are; the local cloud is started when it does not run."""
        from tpuctl.cloud.endpoints import GOOGLE, Endpoint

        if self.cloud_name == "google":
            return GOOGLE
        from tpuctl.emulator import control

        home = control.default_home()
        running = control.status(home)
        if running is None:
            started = time.monotonic()
            self.emit(StepStarted("cloud/local", "start", "it is not running"))
            running = control.start(home)
            self.emit(StepFinished("cloud/local", Outcome.DONE, time.monotonic() - started))
        return Endpoint("local", running.url, running.token)

    @cached_property
    def cloud(self) -> Cloud:
        from tpuctl.cloud.clients import Cloud

        return Cloud(self.endpoint, self.stack.project)

    @cached_property
    def key(self) -> KeyPair:
        """The SSH key: the one that the stack file names, else tpuctl's own, made when missing."""
        from tpuctl.remote.keys import load_key, own_key

        named = self.stack.file.access.ssh_key
        return own_key() if named == "auto" else load_key(Path(named).expanduser())

    async def plan(self) -> Prepared:
        """What `up` would do, asking the cloud but changing nothing."""
        from tpuctl.cloud.address import own_address_range
        from tpuctl.flows.provision import prepare_up, resources_of

        allowed = self.stack.file.network.allow_from
        resources = resources_of(
            self.stack,
            self.cloud,
            sources=allowed or (await own_address_range(self.endpoint),),
            public_key=lambda: self.key.public_line,
        )
        return Prepared(self.stack, await prepare_up(resources), resources)

    async def up(self, confirm: Callable[[Prepared], None] | None = None) -> Prepared:
        """Bring the stack up. `confirm` sees the plan first and raises to refuse it."""
        from tpuctl.flows.provision import apply_plan
        from tpuctl.flows.workers import connect_workers

        prepared = await self.plan()
        if prepared.plan.is_empty:
            return prepared
        if confirm is not None:
            confirm(prepared)
        _ = self.key  # where it cannot be had, nothing is made
        await self._prepare_image()
        await apply_plan(prepared.plan, prepared.resources, self.emit)
        async with self._step("ssh/workers", "connect", "jobs are sent over SSH"):
            transports = await self.transports()
            await connect_workers(self.cloud, list(transports.values()))
            await asyncio.gather(*(one.close() for one in transports.values()))
        return prepared

    async def node(self) -> NodeStatus:
        """The stack's node. Raises NotFound when there is none."""
        from tpuctl.flows.provision import look_for_nodes

        nodes = await look_for_nodes(self.stack, self.cloud)
        if not nodes:
            raise NotFound(
                "No node",
                f"stack {self.stack.name} has no node",
                hint="Bring it up with\n    tpuctl up",
            )
        return min(nodes, key=lambda node: (node.zone != self.stack.zone, node.state != "READY"))

    async def transports(self) -> dict[int, SshTransport]:
        """A connection to each worker of the node, made when first used."""
        from tpuctl.flows.workers import transports_of
        from tpuctl.remote.keys import config_home

        return await transports_of(
            self.stack,
            self.cloud,
            await self.node(),
            key=self.key.path,
            known_hosts=config_home() / "known_hosts",
            emit=self.emit,
        )

    @asynccontextmanager
    async def _step(self, address: str, action: str, because: str) -> AsyncIterator[Report]:
        """Tell the begin and the end of a step; gives what reports progress in between."""
        started = time.monotonic()
        self.emit(StepStarted(address, action, because))

        def report(text: str, fraction: float | None = None) -> None:
            self.emit(StepProgress(address, text, fraction))

        try:
            yield report
        except BaseException:
            self.emit(StepFinished(address, Outcome.FAILED, time.monotonic() - started))
            raise
        self.emit(StepFinished(address, Outcome.DONE, time.monotonic() - started))

    async def _prepare_image(self) -> None:
        """On the local cloud: make the machine's image before the node waits for it."""
        if not self.endpoint.is_local:
            return
        from tpuctl.emulator.machine import MachineError
        from tpuctl.emulator.machines import ImageStore

        images = ImageStore()
        tensorflow = self.stack.runtime.tensorflow
        try:
            if images.is_made(tensorflow):
                return
            name = f"image/tensorflow-{tensorflow}" if tensorflow else "image/python"
            async with self._step(name, "make", "the machines of the local cloud run it") as report:
                await images.ensure(tensorflow, lambda text: report(text, None))
        except MachineError as error:
            raise TpuctlError("Image cannot be made", str(error)) from error

    async def status(self) -> StackStatus:
        """What exists, asked of the cloud."""
        from tpuctl.flows.provision import look_for_nodes
        from tpuctl.resources.bucket import Bucket

        nodes, bucket = await asyncio.gather(
            look_for_nodes(self.stack, self.cloud), Bucket(self.stack, self.cloud).observe()
        )
        return StackStatus(self.stack, tuple(nodes), bucket.name if bucket else None)

    @cached_property
    def store(self) -> ObjectStore:
        """The objects of the stack's bucket."""
        from tpuctl.cloud.objects import ObjectStore

        return ObjectStore(self.cloud.client("storage"), self.stack.bucket)

    async def submit(
        self, script: str | Path, arguments: Sequence[str] = (), *, check: bool = True
    ) -> JobRecord:
        """Check the script, bundle it, ship it, start it on its workers."""
        from tpuctl.flows.submit import Submission, submit
        from tpuctl.preflight.script import check_script

        path = Path(script)
        if check:
            check_script(path)
        wanted = Submission.of(self.stack, path, tuple(arguments), cloud=self.cloud_name)
        node = await self.node()
        wanted = replace(wanted, zone=node.zone, node=node.name)
        async with self._connections() as transports:
            chosen = {worker: transports[worker] for worker in wanted.workers}
            return await submit(wanted, self.store, chosen, self.emit)

    async def follow(
        self, record: JobRecord, *, all_workers: bool = False, offset: int = 0, show: bool = True
    ) -> int:
        """Emit the job's log until it has ended; its exit code.

        The log of the first worker from byte `offset` on, or of all workers, line by line with
        their names. Cancelling leaves the job alone.
        """
        from tpuctl.flows.follow import follow

        emit: Emit = self.emit
        shown = record.workers if all_workers else record.workers[:1]
        prefixing = _Prefixing(emit, shown) if len(shown) > 1 else None
        async with self._connections(required=False) as transports:
            try:
                return await follow(
                    record,
                    self.store,
                    {one: transports[one] for one in record.workers if one in transports},
                    prefixing or emit,
                    from_offsets={} if prefixing else {shown[0]: offset},
                    shown=shown if show else (),
                    is_gone=self._is_node_gone,
                )
            finally:
                if prefixing is not None:
                    prefixing.finish()

    async def run(self, script: str | Path, arguments: Sequence[str] = ()) -> int:
        """Submit a script and follow it to its end; the job's exit code."""
        return await self.follow(await self.submit(script, arguments))

    async def log(self, record: JobRecord, *, all_workers: bool = False, offset: int = 0) -> None:
        """Emit what the job has logged until now."""
        from tpuctl.jobs.logs import log_so_far

        shown = record.workers if all_workers else record.workers[:1]
        prefixing = _Prefixing(self.emit, shown) if len(shown) > 1 else None
        async with self._connections(required=False) as transports:
            for worker in shown:
                at = 0
                async for data in log_so_far(record, worker, transports.get(worker), self.store):
                    (prefixing or self.emit)(LogChunk(worker, data[max(0, offset - at) :], at))
                    at += len(data)
        if prefixing is not None:
            prefixing.finish()

    async def job(self, name: str = "") -> JobRecord:
        """A job by its id or its word; the latest when none is given. Raises NotFound."""
        from tpuctl.flows.follow import latest, load

        try:
            found = await (load(self.store, name) if name else latest(self.store))
        except NotFound:  # the job, or a bucket to look for it in
            if name:
                raise NotFound(
                    "No such job",
                    f"{name} is not in gs://{self.store.name}",
                    hint="See them with\n    tpuctl jobs",
                ) from None
            found = None
        if found is None:
            raise NotFound(
                "No job yet",
                f"nothing was submitted to stack {self.stack.name}",
                hint="Submit something with\n    tpuctl run SCRIPT",
            )
        return found

    async def jobs(self) -> list[JobSummary]:
        """All jobs of the stack, the latest first; none where there is no bucket."""
        from tpuctl.flows.follow import list_jobs

        try:
            return await list_jobs(self.store)
        except NotFound:
            return []

    async def stop(self, record: JobRecord) -> JobStatus:
        """End the job on every worker: SIGTERM, then SIGKILL after a grace."""
        from tpuctl.flows.follow import stop

        async with self._connections(required=False) as transports:
            return await stop(record, self.store, transports, self.emit)

    async def ssh_command(self, worker: int, command: Sequence[str] = ()) -> list[str]:
        """The command line of the `ssh` program that opens a shell on a worker."""
        from tpuctl.remote.keys import config_home
        from tpuctl.remote.ssh import program

        transports = await self.transports()
        if worker not in transports:
            raise Usage(
                "No such worker", f"the node has workers 0 to {len(transports) - 1}, not {worker}"
            )
        known_hosts = config_home() / "known_hosts" / f"{self.stack.name}-{worker}"
        return program(transports[worker].address, self.key.path, known_hosts, command)

    @asynccontextmanager
    async def _connections(self, *, required: bool = True) -> AsyncIterator[dict[int, Transport]]:
        """Transports to the node's workers, closed at the end; none where there is no node."""
        try:
            found = await self.transports()
        except (NotFound, Unreachable):
            if required:
                raise
            found = {}
        try:
            yield dict(found)
        finally:
            await asyncio.gather(*(one.close() for one in found.values()), return_exceptions=True)

    async def _is_node_gone(self) -> bool:
        """Whether the machines will never answer again."""
        try:
            node = await self.node()
        except NotFound:
            return True
        return node.state in ("PREEMPTED", "TERMINATED", "DELETING", "STOPPED", "STOPPING")

    async def down(
        self,
        *,
        delete_bucket: bool = False,
        confirm: Callable[[Teardown], None] | None = None,
    ) -> Down:
        """Take the stack away, then ask the cloud what is left of it."""
        from tpuctl.flows.provision import apply_plan, prepare_down, prove_down, resources_of

        resources = resources_of(self.stack, self.cloud, delete_bucket=delete_bucket)
        teardown = await prepare_down(resources, self.stack, self.cloud)
        if not teardown.plan.is_empty:
            if confirm is not None:
                confirm(teardown)
            await apply_plan(teardown.plan, teardown.resources, self.emit)
        return Down(await prove_down(teardown))
