"""The small Python interface: what the command line does, for programs. Wires everything, lazily.

For example:

    import asyncio
    from tpuctl.api import Tpuctl

    stack = Tpuctl("tpuctl.yaml", cloud="local")
    asyncio.run(stack.up())
    code = asyncio.run(stack.run("train.py"))
    asyncio.run(stack.down(delete_bucket=True))
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tpuctl.errors import NotFound, Unreachable, Usage
from tpuctl.model.events import Emit, ignore

if TYPE_CHECKING:
    from tpuctl.cloud.clients import Cloud
    from tpuctl.cloud.endpoints import Endpoint
    from tpuctl.cloud.objects import ObjectStore
    from tpuctl.engine.resource import Resource
    from tpuctl.flows.provision import Teardown
    from tpuctl.model.job import JobRecord, JobStatus, JobSummary
    from tpuctl.model.plan import Plan
    from tpuctl.model.stack import Stack
    from tpuctl.model.status import NodeStatus, Remaining
    from tpuctl.remote.keys import KeyPair
    from tpuctl.remote.ssh import SshTransport

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
        from tpuctl.cloud.endpoints import GOOGLE

        if self.cloud_name == "google":
            return GOOGLE
        from tpuctl.api.local import running_endpoint

        return running_endpoint(self.emit)

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
        from tpuctl.engine.step import step
        from tpuctl.flows.provision import apply_plan
        from tpuctl.flows.workers import connect_workers

        prepared = await self.plan()
        if prepared.plan.is_empty:
            return prepared
        if confirm is not None:
            confirm(prepared)
        _ = self.key  # where it cannot be had, nothing is made
        if self.endpoint.is_local:
            from tpuctl.api.local import prepare_image

            await prepare_image(self.stack.runtime.tensorflow, self.emit)
        await apply_plan(prepared.plan, prepared.resources, self.emit)
        with step(self.emit, "ssh/workers", "connect", "jobs are sent over SSH"):
            async with self._connections() as transports:
                await connect_workers(self.cloud, list(transports.values()))
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
        from tpuctl.flows.follow import follow, named

        workers = record.workers if all_workers else record.workers[:1]
        async with self._connections(required=False) as transports:
            with named(self.emit, workers) as emit:
                return await follow(
                    record,
                    self.store,
                    {one: transports[one] for one in record.workers if one in transports},
                    emit,
                    from_offsets={workers[0]: offset} if len(workers) == 1 else {},
                    shown=workers if show else (),
                    is_gone=self._is_node_gone,
                )

    async def run(self, script: str | Path, arguments: Sequence[str] = ()) -> int:
        """Submit a script and follow it to its end; the job's exit code."""
        return await self.follow(await self.submit(script, arguments))

    async def log(self, record: JobRecord, *, all_workers: bool = False, offset: int = 0) -> None:
        """Emit what the job has logged until now."""
        from tpuctl.flows.follow import show_log

        workers = record.workers if all_workers else record.workers[:1]
        async with self._connections(required=False) as transports:
            await show_log(record, workers, self.store, transports, self.emit, offset=offset)

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
    async def _connections(
        self, *, required: bool = True
    ) -> AsyncIterator[dict[int, SshTransport]]:
        """Transports to the node's workers, closed at the end; none where there is no node."""
        try:
            found = await self.transports()
        except (NotFound, Unreachable):
            if required:
                raise
            found = {}
        try:
            yield found
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
