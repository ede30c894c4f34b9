"""Stacks as programs handle them: up, down, what exists, and the connections to their workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tpuctl.api.answers import Down
from tpuctl.errors import Conflict, NotFound, TpuctlError, Unreachable
from tpuctl.model.events import Emit, Note, Warned, ignore

if TYPE_CHECKING:
    from tpuctl.cloud.clients import Cloud
    from tpuctl.cloud.endpoints import Endpoint
    from tpuctl.cloud.objects import ObjectStore
    from tpuctl.flows.provision import Prepared, Teardown
    from tpuctl.model.inventory import Found
    from tpuctl.model.job import JobRecord
    from tpuctl.model.snapshot import StackStatus
    from tpuctl.model.stack import Stack
    from tpuctl.model.status import NodeStatus
    from tpuctl.remote.keys import KeyPair
    from tpuctl.remote.ssh import SshTransport

__all__ = ["StackApi"]


class StackApi:
    """What can be done with the resources of one stack."""

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

    @cached_property
    def stack(self) -> Stack:
        """The stack file, read. What makes something of it has it checked: `require_makeable`.

        Raises InvalidStack for a file that does not say what a stack is.
        """
        from tpuctl.model.stack import bare_stack, read_stack

        return bare_stack(*self.bare) if self.bare else read_stack(self.stack_file)

    @cached_property
    def project(self) -> str:
        """The project's id; of a program that named no stack too. Raises Usage, InvalidStack."""
        from tpuctl.model.stack import bare_stack

        if self.bare and not self.bare[0]:
            return bare_stack("any", self.bare[1]).project
        return self.stack.project

    @cached_property
    def endpoint(self) -> Endpoint:
        """Where the APIs are; the local cloud is started when it does not run."""
        from tpuctl.api.local import require_google, running_endpoint
        from tpuctl.cloud.endpoints import GOOGLE

        if self.cloud_name == "google":
            require_google()
            return GOOGLE

        return running_endpoint(self.emit)

    @cached_property
    def cloud(self) -> Cloud:
        from tpuctl.cloud.clients import Cloud

        made = Cloud(self.endpoint, self.project)
        if self.bare is None:
            made.around = {"type": self.stack.file.tpu.type}
        return made

    @cached_property
    def key(self) -> KeyPair:
        """The SSH key: the one that the stack file names, else tpuctl's own, made when missing."""
        from tpuctl.remote.keys import load_key, own_key

        named = self.stack.file.access.ssh_key
        return own_key() if named == "auto" else load_key(Path(named).expanduser())

    @cached_property
    def controller(self) -> str | None:
        """The stack's controller that this program runs on; None anywhere else."""
        from tpuctl.flows.renewal import controller_name

        return controller_name()

    def public_keys(self) -> str:
        """The keys that machines let in, a line each: ours, and the controller's once known."""
        from tpuctl.flows.handover import controllers_key

        return "\n".join([self.key.public_line, *controllers_key(self.stack)])

    async def plan(self, zone: str | None = None) -> Prepared:
        """What `up` would do, asking the cloud but changing nothing. Raises InvalidStack.

        On the stack's controller no more than making the TPU, which is all that it may do.
        """
        from tpuctl.flows.access import access_warnings, sources_of
        from tpuctl.flows.permissions import permitted
        from tpuctl.flows.provision import prepare_up
        from tpuctl.flows.renewal import prepare_renewal

        self.stack.require_makeable()
        if self.controller is not None:
            return await prepare_renewal(self.stack, self.cloud, public_keys=self.public_keys)
        asking = prepare_up(
            self.stack,
            self.cloud,
            sources=await sources_of(self.stack, self.cloud),
            public_key=self.public_keys,
            zone=zone,
        )
        prepared = await permitted(self.stack, self.cloud, asking)
        if zone is None and prepared.asks_for_closed_node:
            from tpuctl.resources.tpu_node_v1 import announcement

            self.emit(Warned(announcement(prepared.stack)))
        warnings = await access_warnings(self.stack, self.cloud, prepared.plan)
        for one in (*warnings, *prepared.quota.shortfalls):
            self.emit(Warned(one))
        return prepared

    async def up(self, confirm: Callable[[Prepared], None] | None = None) -> Prepared:
        """Bring the stack up. `confirm` sees the plan first and raises to refuse it."""
        prepared = await self.plan()
        if confirm is not None and not prepared.plan.is_empty:
            confirm(prepared)
        return await self.bring_up(prepared)

    async def bring_up(self, prepared: Prepared) -> Prepared:
        """Carry a plan out, and wait until every machine is ready for jobs."""
        from tpuctl.flows.bring_up import plan_settling, settle
        from tpuctl.flows.handover import equip_controller

        self.emit(plan_settling(prepared))
        if not prepared.plan.is_empty:
            _ = self.key  # where it cannot be had, nothing is made
            if self.endpoint.is_local:
                from tpuctl.api.local import prepare_image

                await prepare_image(self.stack.runtime.tensorflow, self.emit, self.may_install)
            prepared = await self.provision(prepared)
        async with self.connections() as transports:
            node = await self.node() if self.stack.is_node else None
            await settle(prepared.stack, self.cloud, node, transports, self.emit)
        if self.controller is None:
            await equip_controller(prepared.stack, self.cloud, self.key, self.emit)
        return prepared

    async def provision(self, prepared: Prepared) -> Prepared:
        """Carry a plan out, in other zones if need be. The machines may not answer yet after it.

        Raises Conflict, with everything taken away again, when the stack was taken down meanwhile.
        """
        from tpuctl.api.local import unless_gone
        from tpuctl.flows.bring_up import apply_somewhere
        from tpuctl.flows.meanwhile import Meanwhile, TakenDown

        meanwhile = Meanwhile(self.stack, self.cloud, self.emit)
        await meanwhile.begin()
        applying = meanwhile.work(apply_somewhere(prepared, self.plan, meanwhile.emit))
        try:
            return await unless_gone(applying, self.endpoint, "tpuctl up")
        except TakenDown as taken:
            raise await self._give_up() from taken

    async def _give_up(self) -> TpuctlError:
        """Take away what was made beside a `down`; the error that tells of it."""
        self.emit(Note("The stack is being taken down by somebody else: undoing what was made."))
        if self.controller is not None:
            from tpuctl.flows.renewal import undo_renewal

            await undo_renewal(self.stack, self.cloud, self.emit)
        else:
            await self.down()
        return Conflict(
            "Taken down meanwhile",
            f"somebody took stack {self.stack.name} down while it was brought up; "
            "what was made has been taken away again",
            hint="Bring it up anew with\n    tpuctl up",
        )

    async def hand_over(self, record: JobRecord) -> bool:
        """Have the stack's controller, if it has one, go on with a job; whether it does."""
        from tpuctl.flows.handover import hand_over

        return await hand_over(self.stack, self.cloud, record, self.key, self.emit)

    async def node(self) -> NodeStatus:
        """The stack's node, the first of several. Raises NotFound when there is none."""
        from tpuctl.flows.nodes import nodes_of

        return (await nodes_of(self.stack, self.cloud))[0]

    async def transports(self) -> dict[int, SshTransport]:
        """A connection to each worker, made when first used; numbered through all nodes."""
        from tpuctl.flows.nodes import nodes_of
        from tpuctl.flows.workers import transports_of
        from tpuctl.remote.keys import config_home

        return await transports_of(
            self.stack,
            self.cloud,
            await nodes_of(self.stack, self.cloud),
            key=self.key.path,
            known_hosts=config_home() / "known_hosts",
            emit=self.emit,
            is_inside=self.controller is not None,
        )

    async def status(self) -> StackStatus:
        """What exists, asked of the cloud."""
        from tpuctl.flows.inventory import look
        from tpuctl.model.inventory import with_requests
        from tpuctl.model.snapshot import StackStatus

        stack = self.stack
        found = with_requests(
            await look(
                self.cloud,
                stack.project,
                stack=stack.name,
                of=lambda kind: kind.is_billable,
                must_exist=self.bare is not None,
            ),
            None if self.bare else stack.file.tpu.capacity,
        )
        buckets = [one.name for one in found if one.kind == "bucket"]
        return StackStatus(
            stack,
            tuple(one.node for one in found if one.node is not None),
            next(iter(buckets), None),
            tuple(one for one in found if one.node is None and one.kind != "bucket"),
            tuple(found),
        )

    @cached_property
    def store(self) -> ObjectStore:
        """The objects of the stack's bucket."""
        from tpuctl.cloud.objects import ObjectStore

        return ObjectStore(self.cloud.client("storage"), self.stack.bucket)

    @asynccontextmanager
    async def connections(self, *, required: bool = True) -> AsyncIterator[dict[int, SshTransport]]:
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

    async def down(
        self,
        *,
        delete_bucket: bool = False,
        confirm: Callable[[Teardown], None] | None = None,
    ) -> Down:
        """Take the stack away, then ask the cloud what is left of it."""
        from tpuctl.flows.provision import apply_plan, prepare_down, prove_down
        from tpuctl.resources.stack_record import Record

        teardown = await prepare_down(
            self.stack, self.cloud, delete_bucket=delete_bucket, must_exist=self.bare is not None
        )
        if not teardown.plan.is_empty:
            if confirm is not None:
                confirm(teardown)
            with suppress(NotFound):  # without a bucket nobody can be told
                await Record(self.stack, self.cloud).update(lambda it: it.with_down())
            await apply_plan(teardown.plan, teardown.resources, self.emit)
        return Down(await prove_down(teardown, self.cloud))

    async def orphans(self) -> list[Found]:
        """Everything in the project that any stack made, in every zone."""
        from tpuctl.flows.inventory import look
        from tpuctl.model.inventory import with_requests

        found = await look(self.cloud, self.project, must_exist=True, unseen=self._not_seen)
        return with_requests(found)

    def _not_seen(self, error: TpuctlError) -> None:
        """What could not be looked at, and costs nothing, ends no search."""
        self.emit(Warned(error.diagnostics[0]))
