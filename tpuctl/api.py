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
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tpuctl.errors import TpuctlError
from tpuctl.model.events import Emit, Outcome, StepFinished, StepProgress, StepStarted, ignore

if TYPE_CHECKING:
    from tpuctl.cloud.clients import Cloud
    from tpuctl.cloud.endpoints import Endpoint
    from tpuctl.engine.resource import Report, Resource
    from tpuctl.flows.provision import NodeStatus, Remaining, Teardown
    from tpuctl.model.plan import Plan
    from tpuctl.model.stack import Stack
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
            self.emit(
                StepFinished("cloud/local", Outcome.DONE, time.monotonic() - started, "started")
            )
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
        await self._prepare_image()
        await apply_plan(prepared.plan, prepared.resources, self.emit)
        async with self._step("ssh/workers", "connect", "jobs are sent over SSH"):
            transports = await self.transports()
            await connect_workers(self.cloud, list(transports.values()))
            await asyncio.gather(*(one.close() for one in transports.values()))
        return prepared

    async def node(self) -> NodeStatus:
        """The stack's node. Raises NotFound when there is none."""
        from tpuctl.errors import NotFound
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
