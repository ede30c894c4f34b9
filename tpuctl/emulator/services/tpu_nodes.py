"""What a node's operations do: its state in the store, its machines behind it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.cloud.common.types.operation_metadata import OperationMetadata
from google.cloud.tpu_v2.types import cloud_tpu
from google.protobuf import json_format

from tpuctl.emulator.machine import Endpoint, MachineError, MachineSpec
from tpuctl.emulator.operations import Arguments, Effect, Record
from tpuctl.emulator.status import ApiError
from tpuctl.emulator.world import World

__all__ = ["KIND", "PORT_KEY", "Nodes", "State"]

log = logging.getLogger(__name__)

KIND = "tpu.node"
PORT_KEY = "tpuctl-ssh-port"  # node metadata, where SSH is not at port 22
_BOOTS_AT_ONCE = 16

Node = cloud_tpu.Node.pb()
State = cloud_tpu.Node.State
Health = cloud_tpu.Node.Health


class Nodes:
    """The nodes of every project, and the effects that change them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._store = world.store
        self._boots = asyncio.Semaphore(_BOOTS_AT_ONCE)
        self.effects: Mapping[str, Effect] = {
            "tpu.nodes.create": Effect(self._ready, self._make, self._never_was, self._metadata),
            "tpu.nodes.start": Effect(self._ready, self._boot, self._stopped_again, self._metadata),
            "tpu.nodes.stop": Effect(self._stopped, self._shut, None, self._metadata),
            "tpu.nodes.delete": Effect(self._deleted, self._discard, None, self._metadata),
            "tpu.nodes.update": Effect(self._updated, None, None, self._metadata),
        }

    # The store.

    def find(self, name: str) -> Any | None:
        body = self._store.get(KIND, name)
        return None if body is None else Node.FromString(body)

    def save(self, node: Any) -> None:
        self._store.put(KIND, node.name, node.SerializeToString())

    def all(self, prefix: str = "") -> list[Any]:
        return [Node.FromString(body) for _, body in self._store.items(KIND, prefix)]

    def begin(self, verb: str, node: Any, **more: Any) -> Record:
        """Start one of the effects on a node."""
        step = f"tpu.nodes.{verb}"
        return self._world.operations.begin(
            node.name.partition("/nodes/")[0],
            step,
            {"target": node.name, "verb": verb, **more},
            self._world.pace.seconds(step),
        )

    def abort_pending(self, name: str) -> None:
        """A deletion ends whatever else was under way on the node."""
        for verb in ("create", "start", "stop", "update"):
            for record in self._world.operations.pending(f"tpu.nodes.{verb}"):
                if record.arguments["target"] == name:
                    self._world.operations.abort(
                        record.name, ApiError("CANCELLED", "The node is being deleted.")
                    )

    # Machines.

    def worker_names(self, node_name: str, count: int) -> list[str]:
        return [f"{node_name}/workers/{index}" for index in range(count)]

    async def reserve(self, node_name: str, count: int) -> list[Endpoint]:
        return await self._world.host.reserve(self.worker_names(node_name, count))

    async def specs(self, node: Any) -> list[MachineSpec]:
        """What each worker's machine has to know, from the node as it stands."""
        names = self.worker_names(node.name, len(node.network_endpoints))
        return self._specs(node, await self._world.host.reserve(names))

    def _specs(self, node: Any, endpoints: Sequence[Endpoint]) -> list[MachineSpec]:
        _, project_id, _, zone, _, node_id = node.name.split("/")
        project = self._world.projects.find(project_id)
        assert project is not None, "projects are never removed"
        email = node.service_account.email
        return [
            MachineSpec(
                name=name,
                node_id=node_id,
                worker=index,
                endpoints=tuple(endpoints),
                project=project["id"],
                project_number=project["number"],
                zone=zone,
                accelerator_type=node.accelerator_type,
                runtime_version=node.runtime_version,
                service_account=email,
                access_token=self._world.access.token_for(email),
                metadata=dict(node.metadata),
            )
            for index, name in enumerate(self.worker_names(node.name, len(endpoints)))
        ]

    async def resume(self) -> None:
        """Boot the machines of every node that was READY when the last process ended."""
        for node in self.all():
            if node.state == State.READY:
                self._world.in_background(self._boot_again(node))

    async def _boot_again(self, node: Any) -> None:
        try:
            await self._boot({"target": node.name}, lambda text: None)
        except ApiError as error:
            log.error("%s: machines did not come back: %s", node.name, error.message)
            changed = self.find(node.name)
            if changed is not None and changed.state == State.READY:
                changed.health = Health.TIMEOUT
                changed.health_description = error.message
                self.save(changed)

    async def _make(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        try:
            await self._boot(arguments, tell)
        except Exception:
            # Before the failure is told, so that a server that ends here takes it up again.
            await self._discard(arguments, tell)
            raise

    async def _boot(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        node = self._must(arguments)

        async def boot(spec: MachineSpec) -> None:
            async with self._boots:
                await self._world.host.boot(spec, tell)

        try:
            async with asyncio.TaskGroup() as group:
                for spec in await self.specs(node):
                    group.create_task(boot(spec))
        except* MachineError as several:
            first = several.exceptions[0]
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise ApiError("INTERNAL", f"A machine of the node could not start: {first}") from first

    async def _shut(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        node = self._must(arguments)
        for name in self.worker_names(node.name, len(node.network_endpoints)):
            await self._world.host.shut(name)

    async def _discard(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        node = self.find(arguments["target"])
        if node is not None:
            names = self.worker_names(node.name, len(node.network_endpoints))
            await asyncio.gather(*(self._world.host.discard(name) for name in names))

    # What ends an operation.

    def _must(self, arguments: Arguments) -> Any:
        node = self.find(arguments["target"])
        if node is None:
            raise ApiError("NOT_FOUND", f"Resource '{arguments['target']}' was not found")
        return node

    def _ready(self, arguments: Arguments) -> Any:
        node = self._must(arguments)
        node.state = State.READY
        node.health = Health.HEALTHY
        self.save(node)
        return node

    def _never_was(self, arguments: Arguments, error: ApiError) -> None:
        """A creation that failed leaves no node behind. A deletion under way ends by itself."""
        node = self.find(arguments["target"])
        if node is None or node.state == State.DELETING:
            return
        self._store.delete(KIND, node.name)

    def _stopped(self, arguments: Arguments) -> Any:
        node = self._must(arguments)
        node.state = State.STOPPED
        node.health = Health.HEALTH_UNSPECIFIED
        self.save(node)
        return node

    def _stopped_again(self, arguments: Arguments, error: ApiError) -> None:
        node = self.find(arguments["target"])
        if node is not None and node.state == State.STARTING:
            node.state = State.STOPPED
            self.save(node)

    def _deleted(self, arguments: Arguments) -> None:
        self._store.delete(KIND, arguments["target"])

    def _updated(self, arguments: Arguments) -> Any:
        node = self._must(arguments)
        changes = json_format.ParseDict(arguments["changes"], Node())
        for name in arguments["fields"]:
            node.ClearField(name)
            if name == "description":
                node.description = changes.description
            else:
                getattr(node, name).MergeFrom(getattr(changes, name))
        if arguments.get("port") and PORT_KEY not in node.metadata:
            node.metadata[PORT_KEY] = arguments["port"]
        self.save(node)
        if node.state == State.READY:
            self._world.in_background(self._reconfigure(node))
        return node

    async def _reconfigure(self, node: Any) -> None:
        for spec in await self.specs(node):
            self._world.host.reconfigure(spec)

    @staticmethod
    def _metadata(record: Record) -> Any:
        """Exactly this type: REST clients fail on any other one of real TPU operations."""
        metadata = OperationMetadata.pb()(
            target=record.arguments["target"],
            verb=record.arguments["verb"],
            status_detail=record.detail,
            api_version="v2",
        )
        metadata.create_time.FromNanoseconds(int(record.started * 1e9))
        if record.ended is not None:
            metadata.end_time.FromNanoseconds(int(record.ended * 1e9))
        return metadata


def created_now(node: Any) -> None:
    node.create_time.FromNanoseconds(time.time_ns())
