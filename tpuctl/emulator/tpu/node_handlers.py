"""The methods for nodes that Cloud TPU v1 and v2 share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tpuctl.emulator.faults.weather import Occupant
from tpuctl.emulator.machines.interface import Endpoint, MachineError
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.tpu.admission import Admission
from tpuctl.emulator.tpu.interruptions import Interruptions
from tpuctl.emulator.tpu.nodes import Nodes, NodeState, require_state
from tpuctl.emulator.tpu.offerings import (
    already_exists,
    bad_request,
    name_prefix,
    not_found,
    project_and_zone,
)
from tpuctl.emulator.tpu.quota import Quota, wants_spot
from tpuctl.emulator.wire.machine_service import MachineService
from tpuctl.emulator.wire.operations_service import OperationsService
from tpuctl.emulator.wire.paging import name_of, requested_page
from tpuctl.emulator.wire.registry import Caller, Registry

_WITHOUT_ROOM = (
    *(NodeState.PREEMPTED, NodeState.TERMINATED, NodeState.STOPPED, NodeState.DELETING),
)


class NodeHandlers(OperationsService, MachineService):
    """Handlers of one version, with the nodes that it created and those of the other version.

    Names are unique in both. Each version returns all nodes, in its own form.
    """

    list_response: Any  # the version's ListNodesResponse

    def __init__(self, registry: Registry, nodes: Nodes, others: Nodes) -> None:
        super().__init__(registry)
        self._nodes = nodes
        self._others = others
        self._admission = Admission(registry)
        self._quota = Quota(registry)
        self._interruptions = Interruptions(registry, nodes)
        self.effects = {**nodes.effects, **self._interruptions.effects}

    def in_own_form(self, node: Any) -> Any:
        """A node of the other version in this version's form."""
        raise NotImplementedError

    async def resume(self) -> None:
        await self._nodes.resume()

    async def preempt(self, name: str) -> None:
        self._interruptions.preempt(self._get(name))

    async def maintain(self, name: str) -> None:
        self._interruptions.maintain(self._get(name), api=self._nodes.version)

    def occupants(self) -> Iterator[Occupant]:
        refused = {
            record.arguments["target"]
            for record in self._registry.operations.pending(f"{self._nodes.effect}.create")
            if record.arguments.get("refusal")
        }
        for node in self._nodes.all():
            if node.state not in _WITHOUT_ROOM and node.name not in refused:
                yield Occupant(
                    node.name,
                    str(node.create_time.ToNanoseconds()),
                    node.accelerator_type,
                    node.state == NodeState.READY,
                    wants_spot(node),
                )

    async def list_nodes(self, request: Any, caller: Caller) -> Any:
        prefix = name_prefix(*self._project_and_zone(request.parent))
        nodes = [*self._nodes.all(prefix), *map(self.in_own_form, self._others.all(prefix))]
        nodes.sort(key=name_of)
        rows, token = requested_page(request, nodes)
        return self.list_response(nodes=rows, next_page_token=token)

    async def get_node(self, request: Any, caller: Caller) -> Any:
        name = self._full_name(request.name)
        node = self._nodes.find(name)
        if node is not None:
            return node
        other = self._others.find(name)
        if other is None:
            raise not_found(request.name)
        return self.in_own_form(other)

    async def delete_node(self, request: Any, caller: Caller, *, api: str = "") -> Any:
        """`api`: the version that the client uses, if it is neither."""
        nodes, node = self._to_change(request.name)
        if node.state == NodeState.DELETING:
            raise bad_request("delete is not supported while in state DELETING")
        with self._registry.store.transaction():
            node.state = NodeState.DELETING
            nodes.save(node)
            nodes.abort_pending(node.name)
            record = nodes.begin("delete", node, api=api or self._nodes.version)
        return self._operations.message(record)

    async def stop_node(self, request: Any, caller: Caller, *, api: str = "") -> Any:
        nodes, node = self._to_change(request.name)
        require_state("stop", node, NodeState.READY)
        if len(node.network_endpoints) > 1:
            raise bad_request("stop is not supported for nodes of several hosts.")
        return self._change_state("stop", nodes, node, NodeState.STOPPING, api=api)

    async def start_node(self, request: Any, caller: Caller, *, api: str = "") -> Any:
        nodes, node = self._to_change(request.name)
        require_state("start", node, NodeState.STOPPED)
        return self._change_state("start", nodes, node, NodeState.STARTING, api=api)

    def _project_and_zone(self, name: str) -> tuple[Project, str]:
        return project_and_zone(self._registry.projects, name)

    def _full_name(self, name: str) -> str:
        project, zone = self._project_and_zone(name)
        return f"projects/{project['id']}/locations/{zone}/nodes/{name.partition('/nodes/')[2]}"

    def _get(self, name: str) -> Any:
        """A node that this version created, for changing it."""
        full = self._full_name(name)
        node = self._nodes.find(full)
        if node is None and self._others.find(full) is not None:
            version = self._others.version.upper()
            raise bad_request(f"This is not supported for nodes created by API version {version}.")
        if node is None:
            raise not_found(name)
        return node

    def _to_change(self, name: str) -> tuple[Nodes, Any]:
        """A node that this version can stop, start and delete, and those that it is among."""
        return self._nodes, self._get(name)

    def _require_unused_name(self, name: str) -> None:
        """The name must be unused in both API versions."""
        if self._nodes.find(name) is not None or self._others.find(name) is not None:
            raise already_exists(name)

    async def _reserve(self, name: str, workers: int) -> Sequence[Endpoint]:
        """The endpoints of a new node's machines."""
        try:
            endpoints = await self._nodes.reserve(name, workers)
        except MachineError as error:
            raise ApiError("RESOURCE_EXHAUSTED", str(error)) from error
        self._require_unused_name(name)  # a concurrent request may have created it
        return endpoints

    def _change_state(
        self, verb: str, nodes: Nodes, node: Any, state: int, *, api: str = "", **more: Any
    ) -> Any:
        with self._registry.store.transaction():
            node.state = state
            nodes.save(node)
            record = nodes.begin(verb, node, api=api or self._nodes.version, **more)
        return self._operations.message(record)
