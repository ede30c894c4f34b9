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

from tpuctl.emulator.machines.interface import Endpoint, MachineError, MachineSpec
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.operations import Arguments, Effect, Record
from tpuctl.emulator.wire.registry import World

__all__ = ["KIND", "PORT_KEY", "NodeState", "Nodes"]

log = logging.getLogger(__name__)

KIND = "tpu.node"
PORT_KEY = "tpuctl-ssh-port"  # node metadata, where SSH is not at port 22
_EXTRAS = "tpu.node.extras"  # the kind of the store
_BOOTS_AT_ONCE = 16

Node = cloud_tpu.Node.pb()
NodeState = cloud_tpu.Node.State
Health = cloud_tpu.Node.Health


class Nodes:
    """The nodes of every project, and the effects that change them."""

    kind = KIND  # of the store
    message: Any = Node
    effect = "tpu.nodes"  # what the names of its effects begin with
    step = "tpu.nodes"  # what the names of its paces begin with
    machines = "nodes"  # the collection in the names of its machines
    version = "v2"

    def __init__(self, world: World) -> None:
        self._world = world
        self._store = world.store
        self._boots = asyncio.Semaphore(_BOOTS_AT_ONCE)
        # Told the full name of a node's queued resource when the node is there no more.
        self.gone: Callable[[str], None] = lambda queued_resource: None
        self.effects: Mapping[str, Effect] = {
            f"{self.effect}.{verb}": Effect(finish, work, fail, self.describe)
            for verb, (finish, work, fail) in self._verbs().items()
        }

    def _verbs(self) -> dict[str, tuple[Any, Any, Any]]:
        """What each verb finishes with, works at, and does when that fails."""
        return {
            "create": (self._ready, self._make, self._never_was),
            "start": (self._ready, self._boot, self._stopped_again),
            "stop": (self._stopped, self._shut, None),
            "delete": (self._deleted, self._discard, None),
            "update": (self._updated, None, None),
        }

    # The store.

    def find(self, name: str) -> Any | None:
        body = self._store.get(self.kind, name)
        return None if body is None else self.message.FromString(body)

    def save(self, node: Any) -> None:
        self._store.put(self.kind, node.name, node.SerializeToString())

    def remove(self, name: str) -> None:
        """Forget a node, whose machines are gone, and what was kept beside it."""
        self._store.delete(self.kind, name)
        self._store.delete(_EXTRAS, name)

    def extras(self, name: str) -> dict[str, Any]:
        """What only another version of the API knows of a node, as JSON."""
        return self._store.get_json(_EXTRAS, name) or {}

    def keep_extras(self, name: str, extras: Mapping[str, Any]) -> None:
        if extras:
            self._store.put_json(_EXTRAS, name, dict(extras))
        else:
            self._store.delete(_EXTRAS, name)

    def told(self, node: Any, arguments: Arguments) -> Any:
        """The node as the version of the API shows it that the operation was begun by."""
        if arguments.get("api") != "v2alpha1":
            return node
        from tpuctl.emulator.tpu.v2alpha1_view import as_alpha

        return as_alpha(node, self.extras(node.name))

    def all(self, prefix: str = "") -> list[Any]:
        return [self.message.FromString(body) for _, body in self._store.items(self.kind, prefix)]

    def begin(self, verb: str, node: Any, **more: Any) -> Record:
        """Start one of the effects on a node."""
        return self._world.operations.begin(
            node.name.partition("/nodes/")[0],
            f"{self.effect}.{verb}",
            {"target": node.name, "verb": verb, **more},
            self._world.pace.seconds(f"{self.step}.{verb}"),
        )

    def abort_pending(self, name: str) -> None:
        """A deletion ends whatever else was under way on the node."""
        for verb in self._verbs().keys() - {"delete"}:
            for record in self._world.operations.pending(f"{self.effect}.{verb}"):
                if record.arguments["target"] == name:
                    self._world.operations.abort(
                        record.name, ApiError("CANCELLED", "The node is being deleted.")
                    )

    # Machines.

    def worker_names(self, node_name: str, count: int) -> list[str]:
        place, _, node_id = node_name.partition("/nodes/")
        return [f"{place}/{self.machines}/{node_id}/workers/{index}" for index in range(count)]

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
                **self._machine(node, project["id"]),
            )
            for index, name in enumerate(self.worker_names(node.name, len(endpoints)))
        ]

    def _machine(self, node: Any, project_id: str) -> dict[str, Any]:
        """The fields of a MachineSpec that this version of the API has in a way of its own."""
        email = node.service_account.email
        return {
            "runtime_version": node.runtime_version,
            "service_account": email,
            "access_token": self._world.access.token_for(email, node.service_account.scope),
            "metadata": dict(node.metadata),
            "project_metadata": self._project_keys(project_id),
        }

    def _project_keys(self, project_id: str) -> dict[str, str]:
        """The SSH keys that Compute Engine keeps for all machines of the project.

        Whose key is among them, gcloud does not bring it to the node (SDK 528,
        command_lib/compute/tpus/tpu_vm/ssh.py: AddSSHKeyIfNeeded), and the login works (a log in
        JiahaoYao/ray-jax-tpu-pod-demos). Whether TPU VMs see more of the project's metadata is not
        known: they are given no more.
        """
        kept = self._store.get_json("compute.metadata", project_id) or {"items": []}
        return {item["key"]: item["value"] for item in kept["items"] if item["key"] == "ssh-keys"}

    def reconfigure_all(self, project_id: str) -> None:
        """Tell the project's machines that the metadata they share has changed."""
        for node in self.all(f"projects/{project_id}/"):
            if node.state == NodeState.READY:
                self._world.in_background(self._reconfigure(node))

    async def resume(self) -> None:
        """Boot the machines of every node that was READY when the last process ended."""
        for node in self.all():
            if node.state == NodeState.READY:
                self._world.in_background(self._boot_again(node))

    async def _boot_again(self, node: Any) -> None:
        try:
            await self._boot({"target": node.name}, lambda text: None)
        except ApiError as error:
            log.error("%s: machines did not come back: %s", node.name, error.message)
            changed = self.find(node.name)
            if changed is not None and changed.state == NodeState.READY:
                changed.health = Health.TIMEOUT
                changed.health_description = error.message
                self.save(changed)
            return
        changed = self.find(node.name)
        if changed is not None and changed.state != NodeState.READY:
            await self.shut(changed)  # it was taken away, or stopped, while its machines booted

    async def _make(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        if arguments.get("refusal"):
            status, text = arguments["refusal"]
            await asyncio.sleep(self._world.pace.seconds("tpu.stockout"))
            await self._discard(arguments, tell)  # the addresses of its machines
            raise ApiError(status, text)
        await self.make(arguments, tell)

    async def make(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        """Boot the machines of the node that is the target; none is left when that fails."""
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
        await self.shut(node)

    async def shut(self, node: Any) -> None:
        """End the machines' programs, asked to first, all machines at once."""
        names = self.worker_names(node.name, len(node.network_endpoints))
        await asyncio.gather(*(self._world.host.shut_down(name) for name in names))

    async def _discard(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        await self.discard(arguments["target"])

    async def reboot(self, name: str) -> None:
        """Restart the node's machines, whose disks stay. Raises ApiError."""
        node = self._must({"target": name})
        node.state = NodeState.RESTARTING
        self.save(node)
        await self.shut(node)
        health, description = Health.HEALTHY, ""
        try:
            await self._boot({"target": name}, lambda text: None)
        except ApiError as error:
            health, description = Health.TIMEOUT, error.message
            raise
        finally:
            node = self.find(name)
            if node is not None and node.state == NodeState.RESTARTING:
                node.state, node.health = NodeState.READY, health
                node.health_description = description
                self.save(node)

    async def discard(self, name: str) -> None:
        """End the node's machines and delete their disks; the node itself stays."""
        node = self.find(name)
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
        node.state = NodeState.READY
        node.health = Health.HEALTHY
        self.save(node)
        return self.told(node, arguments)

    def _never_was(self, arguments: Arguments, error: ApiError) -> None:
        """A creation that failed leaves no node behind. A deletion under way ends by itself."""
        node = self.find(arguments["target"])
        if node is None or node.state == NodeState.DELETING:
            return
        self.remove(node.name)

    def _stopped(self, arguments: Arguments) -> Any:
        node = self._must(arguments)
        node.state = NodeState.STOPPED
        node.health = Health.HEALTH_UNSPECIFIED
        self.save(node)
        return self.told(node, arguments)

    def _stopped_again(self, arguments: Arguments, error: ApiError) -> None:
        node = self.find(arguments["target"])
        if node is not None and node.state == NodeState.STARTING:
            node.state = NodeState.STOPPED
            self.save(node)

    def _deleted(self, arguments: Arguments) -> None:
        node = self.find(arguments["target"])
        self.remove(arguments["target"])
        queued_resource = getattr(node, "queued_resource", "")
        if queued_resource:
            self.gone(queued_resource)

    def _updated(self, arguments: Arguments) -> Any:
        node = self._must(arguments)
        changes = json_format.ParseDict(arguments["changes"], Node())
        for name in arguments["fields"]:
            if name == "network_config":
                _show_outside(node, changes.network_config.enable_external_ips)
                continue
            node.ClearField(name)
            if name == "description":
                node.description = changes.description
            else:
                getattr(node, name).MergeFrom(getattr(changes, name))
        if arguments.get("port") and PORT_KEY not in node.metadata:
            node.metadata[PORT_KEY] = arguments["port"]
        self.save(node)
        if node.state == NodeState.READY:
            self._world.in_background(self._reconfigure(node))
        return self.told(node, arguments)

    async def _reconfigure(self, node: Any) -> None:
        for spec in await self.specs(node):
            self._world.host.reconfigure(spec)

    def describe(self, record: Record) -> Any:
        """Exactly this type: REST clients fail on any other one of real TPU operations."""
        metadata = OperationMetadata.pb()(
            target=record.arguments["target"],
            verb=record.arguments["verb"],
            status_detail=record.detail,
            api_version=record.arguments.get("api", self.version),
        )
        metadata.create_time.FromNanoseconds(int(record.started * 1e9))
        if record.ended is not None:
            metadata.end_time.FromNanoseconds(int(record.ended * 1e9))
        return metadata


def _show_outside(node: Any, has_external: bool) -> None:
    """Give each worker an external address, or take it away."""
    node.network_config.enable_external_ips = has_external
    for endpoint in node.network_endpoints:
        endpoint.ClearField("access_config")
        if has_external:
            endpoint.access_config.external_ip = endpoint.ip_address


def created_now(node: Any) -> None:
    node.create_time.FromNanoseconds(time.time_ns())
