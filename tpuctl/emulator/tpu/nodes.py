"""The effects of node operations on the stored node and its machines."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from google.cloud.common.types.operation_metadata import OperationMetadata
from google.cloud.tpu_v2.types import cloud_tpu
from google.protobuf import json_format

from tpuctl.emulator.machines.interface import Endpoint, MachineError, MachineSpec
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.operations import Arguments, Effect, Record
from tpuctl.emulator.state.project_metadata import OS_LOGIN, project_metadata
from tpuctl.emulator.tpu.offerings import bad_request
from tpuctl.emulator.tpu.queued_resource_store import QueuedResourceStore, node_names
from tpuctl.emulator.wire.registry import Registry

log = logging.getLogger(__name__)

KIND = "tpu.node"
PORT_KEY = "tpuctl-ssh-port"  # node metadata key, set if SSH is not on port 22
_EXTRAS = "tpu.node.extras"  # kind in the store
_MAX_CONCURRENT_BOOTS = 16

Node = cloud_tpu.Node.pb()
NodeState = cloud_tpu.Node.State
Health = cloud_tpu.Node.Health


class Nodes:
    """The nodes of all projects, and the effects of their operations."""

    kind = KIND  # kind in the store
    message: Any = Node
    effect = "tpu.nodes"  # prefix of effect names
    step = "tpu.nodes"  # prefix of pace names
    machines = "nodes"  # the collection in machine names
    version = "v2"

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store = registry.store
        self._boots = asyncio.Semaphore(_MAX_CONCURRENT_BOOTS)
        # Called with the name of a node's queued resource when the node was removed.
        self.on_node_removed: Callable[[str], None] = lambda queued_resource: None
        self.effects: Mapping[str, Effect] = {
            f"{self.effect}.{verb}": Effect(finish, work, fail, self.operation_metadata)
            for verb, (finish, work, fail) in self._verbs().items()
        }

    def _verbs(self) -> dict[str, tuple[Any, Any, Any]]:
        """By verb: the `finish`, `work` and `fail` functions of its effect."""
        return {
            "create": (self._finish_creation, self._create, self._fail_creation),
            "start": (self._finish_start, self._boot_machines, self._fail_start),
            "stop": (self._finish_stop, self._stop_machines, None),
            "delete": (self._finish_deletion, self._discard_machines, None),
            "update": (self._finish_update, None, None),
        }

    # The store.

    def find(self, name: str) -> Any | None:
        body = self._store.get(self.kind, name)
        return None if body is None else self.message.FromString(body)

    def save(self, node: Any) -> None:
        self._store.put(self.kind, node.name, node.SerializeToString())

    def remove(self, name: str) -> None:
        """Delete a node, whose machines are discarded, and its extras."""
        self._store.delete(self.kind, name)
        self._store.delete(_EXTRAS, name)

    def extras(self, name: str) -> dict[str, Any]:
        """Fields of a node that only another API version has, as JSON."""
        return self._store.get_json(_EXTRAS, name) or {}

    def save_extras(self, name: str, extras: Mapping[str, Any]) -> None:
        if extras:
            self._store.put_json(_EXTRAS, name, dict(extras))
        else:
            self._store.delete(_EXTRAS, name)

    def as_response(self, node: Any, arguments: Arguments) -> Any:
        """The node in the API version that began the operation."""
        if arguments.get("api") != "v2alpha1":
            return node
        from tpuctl.emulator.tpu.v2alpha1_view import as_alpha

        return as_alpha(node, self.extras(node.name))

    def all(self, prefix: str = "") -> list[Any]:
        return [self.message.FromString(body) for _, body in self._store.items(self.kind, prefix)]

    def begin(self, verb: str, node: Any, **more: Any) -> Record:
        """Begin an operation on a node."""
        return self._registry.operations.begin(
            node.name.partition("/nodes/")[0],
            f"{self.effect}.{verb}",
            {"target": node.name, "verb": verb, **more},
            self._registry.pace.seconds(f"{self.step}.{verb}"),
        )

    def abort_pending(self, name: str) -> None:
        """Abort the other pending operations of a node that is being deleted."""
        for verb in self._verbs().keys() - {"delete"}:
            for record in self._registry.operations.pending(f"{self.effect}.{verb}"):
                if record.arguments["target"] == name:
                    self._registry.operations.abort(
                        record.name, ApiError("CANCELLED", "The node is being deleted.")
                    )

    # Machines.

    def worker_names(self, node_name: str, count: int) -> list[str]:
        location, _, node_id = node_name.partition("/nodes/")
        return [f"{location}/{self.machines}/{node_id}/workers/{index}" for index in range(count)]

    def machine_names(self, node: Any) -> list[str]:
        return self.worker_names(node.name, len(node.network_endpoints))

    async def reserve(self, node_name: str, count: int) -> list[Endpoint]:
        return await self._registry.host.reserve(self.worker_names(node_name, count))

    async def specs(self, node: Any) -> list[MachineSpec]:
        """The specs of the workers' machines, from the stored node."""
        return self._specs(node, await self._registry.host.reserve(self.machine_names(node)))

    def _specs(self, node: Any, endpoints: Sequence[Endpoint]) -> list[MachineSpec]:
        _, project_id, _, zone, _, node_id = node.name.split("/")
        project = self._registry.projects.find(project_id)
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
        """Fields of a MachineSpec that differ between API versions."""
        email = node.service_account.email
        return {
            "runtime_version": node.runtime_version,
            "service_account": email,
            "access_token": self._registry.access.token_for(email, node.service_account.scope),
            "metadata": dict(node.metadata),
            "project_metadata": self._project_metadata(project_id),
            "megascale": self._megascale(node),
        }

    def _megascale(self, node: Any) -> dict[str, str]:
        """What the metadata of one of several slices says about the others.

        JAX reads these lines of `tpu-env` (jax/_src/clusters/cloud_tpu_cluster.py: "for GCE via
        QueuedResources"), and there says that the coordinator is the host of the first process. The
        port is a guess: what GKE's workloads open (JobSet manifests with containerPort 8080).
        """
        queued = QueuedResourceStore(self._store).find(node.queued_resource)
        if queued is None or "coordinator" not in queued["_"]:
            return {}
        names = node_names(queued)
        return {
            "MEGASCALE_COORDINATOR_ADDRESS": queued["_"]["coordinator"],
            "MEGASCALE_NUM_SLICES": str(len(names)),
            "MEGASCALE_PORT": "8080",
            "MEGASCALE_SLICE_ID": str(names.index(node.name)),
        }

    def _project_metadata(self, project_id: str) -> dict[str, str]:
        """The project-wide SSH keys of Compute Engine, and whether machines use OS Login.

        If a key is among them, gcloud does not add it to the node (SDK 528,
        command_lib/compute/tpus/tpu_vm/ssh.py: AddSSHKeyIfNeeded), and login works (a log in
        JiahaoYao/ray-jax-tpu-pod-demos). It also takes OS Login of the project for that of its
        nodes (TpuHasOsLoginEnabled there). Whether TPU VMs read more project metadata is unknown:
        here they do not.
        """
        items = project_metadata(self._store, project_id)
        return {
            item["key"]: item["value"] for item in items if item["key"] in ("ssh-keys", OS_LOGIN)
        }

    def reconfigure_all(self, project_id: str) -> None:
        """Pass changed project metadata to the project's machines."""
        for node in self.all(f"projects/{project_id}/"):
            if node.state == NodeState.READY:
                self._registry.in_background(self._reconfigure(node))

    async def resume(self) -> None:
        """Boot the machines of every node that was READY when the last process exited."""
        for node in self.all():
            if node.state == NodeState.READY:
                self._registry.in_background(self._reboot_after_restart(node))

    async def _reboot_after_restart(self, node: Any) -> None:
        try:
            await self._boot_machines({"target": node.name}, lambda text: None)
        except ApiError as error:
            log.error("%s: failed to restart the machines: %s", node.name, error.message)
            changed = self.find(node.name)
            if changed is not None and changed.state == NodeState.READY:
                changed.health = Health.TIMEOUT
                changed.health_description = error.message
                self.save(changed)
            return
        changed = self.find(node.name)
        if changed is not None and changed.state != NodeState.READY:
            await self.stop_machines(changed)  # preempted or stopped while its machines booted

    async def _create(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        if arguments.get("refusal"):
            status, text = arguments["refusal"]
            await asyncio.sleep(self._registry.pace.seconds("tpu.stockout"))
            await self._discard_machines(arguments, report)  # releases reserved addresses
            raise ApiError(status, text)
        await self.create_machines(arguments, report)

    async def create_machines(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        """Boot the target node's machines; on failure, discard them."""
        try:
            await self._boot_machines(arguments, report)
        except Exception:
            # Before the failure is recorded, so that a restarted server retries the cleanup.
            await self._discard_machines(arguments, report)
            raise

    async def _boot_machines(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        node = self._require(arguments)

        async def boot(spec: MachineSpec) -> None:
            async with self._boots:
                await self._registry.host.boot(spec, report)

        try:
            async with asyncio.TaskGroup() as group:
                for spec in await self.specs(node):
                    group.create_task(boot(spec))
        except* MachineError as errors:
            first = errors.exceptions[0]
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise ApiError("INTERNAL", f"A machine of the node could not start: {first}") from first

    async def _stop_machines(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        node = self._require(arguments)
        await self.stop_machines(node)

    async def stop_machines(self, node: Any) -> None:
        """Stop all machines of a node gracefully, in parallel."""
        shut_down = self._registry.host.shut_down
        await asyncio.gather(*(shut_down(name) for name in self.machine_names(node)))

    async def _discard_machines(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        await self.discard_all([arguments["target"]])

    async def reboot(self, name: str) -> None:
        """Restart the node's machines; their disks are kept. Raises ApiError."""
        node = self._require({"target": name})
        node.state = NodeState.RESTARTING
        self.save(node)
        await self.stop_machines(node)
        health, description = Health.HEALTHY, ""
        try:
            await self._boot_machines({"target": name}, lambda text: None)
        except ApiError as error:
            health, description = Health.TIMEOUT, error.message
            raise
        finally:
            node = self.find(name)
            if node is not None and node.state == NodeState.RESTARTING:
                node.state, node.health = NodeState.READY, health
                node.health_description = description
                self.save(node)

    async def discard_all(self, names: Iterable[str]) -> None:
        """Stop the machines of nodes and delete their disks; the nodes stay in the store."""
        nodes = [node for name in names if (node := self.find(name)) is not None]
        discard = self._registry.host.discard
        await asyncio.gather(
            *(discard(machine) for node in nodes for machine in self.machine_names(node))
        )

    # Effects: finish an operation.

    def _require(self, arguments: Arguments) -> Any:
        node = self.find(arguments["target"])
        if node is None:
            raise ApiError("NOT_FOUND", f"Resource '{arguments['target']}' was not found")
        return node

    def _finish_start(self, arguments: Arguments) -> Any:
        node = self._require(arguments)
        node.state = NodeState.READY
        node.health = Health.HEALTHY
        self.save(node)
        return self.as_response(node, arguments)

    def _finish_creation(self, arguments: Arguments) -> Any:
        """The node in the operation's response has no health yet: k8s-config-connector@cdb85ecf17,
        mockgcp/mocktpu/testdata/node/crud."""
        response = self._finish_start(arguments)
        response.ClearField("health")
        return response

    def _fail_creation(self, arguments: Arguments, error: ApiError) -> None:
        """Remove the node of a failed creation, unless a deletion is pending."""
        node = self.find(arguments["target"])
        if node is None or node.state == NodeState.DELETING:
            return
        self.remove(node.name)

    def _finish_stop(self, arguments: Arguments) -> Any:
        node = self._require(arguments)
        node.state = NodeState.STOPPED
        node.health = Health.HEALTH_UNSPECIFIED
        self.save(node)
        return self.as_response(node, arguments)

    def _fail_start(self, arguments: Arguments, error: ApiError) -> None:
        node = self.find(arguments["target"])
        if node is not None and node.state == NodeState.STARTING:
            node.state = NodeState.STOPPED
            self.save(node)

    def _finish_deletion(self, arguments: Arguments) -> None:
        node = self.find(arguments["target"])
        self.remove(arguments["target"])
        queued_resource = getattr(node, "queued_resource", "")
        if queued_resource:
            self.on_node_removed(queued_resource)

    def _finish_update(self, arguments: Arguments) -> Any:
        node = self._require(arguments)
        changes = json_format.ParseDict(arguments["changes"], Node())
        for name in arguments["fields"]:
            if name == "network_config":
                _set_external_ips(node, changes.network_config.enable_external_ips)
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
            self._registry.in_background(self._reconfigure(node))
        return self.as_response(node, arguments)

    async def _reconfigure(self, node: Any) -> None:
        for spec in await self.specs(node):
            self._registry.host.reconfigure(spec)

    def operation_metadata(self, record: Record) -> Any:
        """REST clients of TPU operations accept no other metadata type."""
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


def _set_external_ips(node: Any, has_external: bool) -> None:
    """Add or remove the external address of each worker."""
    node.network_config.enable_external_ips = has_external
    for endpoint in node.network_endpoints:
        endpoint.ClearField("access_config")
        if has_external:
            endpoint.access_config.external_ip = endpoint.ip_address


def require_state(verb: str, node: Any, *states: int) -> None:
    if node.state not in states:
        raise bad_request(f"{verb} is not supported while in state {NodeState(node.state).name}")


def set_create_time(node: Any) -> None:
    node.create_time.FromNanoseconds(time.time_ns())
