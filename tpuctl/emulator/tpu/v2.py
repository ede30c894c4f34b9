"""Cloud TPU v2: nodes, queued resources, operations, types, runtimes and zones.

Nodes created by v1 are returned too, marked as such; changes to them are delegated to v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.cloud.tpu_v2.types import cloud_tpu
from google.protobuf import json_format

from tpuctl.emulator.machines.interface import MachineError
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.firewall_rules import Identity
from tpuctl.emulator.state.locations import region_of
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.state.resource_names import full_network, relative_name
from tpuctl.emulator.tpu.admission import Admission, check_labels, check_node_id
from tpuctl.emulator.tpu.extended_messages import extended
from tpuctl.emulator.tpu.interruptions import Interruptions
from tpuctl.emulator.tpu.nodes import KIND, PORT_KEY, Node, Nodes, NodeState
from tpuctl.emulator.tpu.offerings import (
    OfferingHandlers,
    already_exists,
    bad_request,
    not_found,
    parse_location,
)
from tpuctl.emulator.tpu.queued_resources import QueuedResources, as_v2_queued, from_v2
from tpuctl.emulator.tpu.quota import Demand, Quota, wants_spot
from tpuctl.emulator.tpu.v1_view import KIND as KIND_V1
from tpuctl.emulator.tpu.v1_view import as_v2, find_v1, list_v1
from tpuctl.emulator.wire.machine_service import MachineService, NetworkInterface
from tpuctl.emulator.wire.operations_service import OperationsService
from tpuctl.emulator.wire.paging import page
from tpuctl.emulator.wire.registry import Caller, Registry

__all__ = ["TpuService"]

# From cloud_tpu.proto, UpdateNodeRequest.update_mask, plus the disks, which gcloud updates this
# way: SDK 528, command_lib/compute/tpus/tpu_vm/util.py, GenerateUpdateMask.
_EXTERNAL = "network_config.enable_external_ips"
_UPDATABLE = ("description", "labels", "tags", "metadata", "data_disks", _EXTERNAL)


class TpuService(OperationsService, OfferingHandlers, MachineService):
    """Handlers of google.cloud.tpu.v2.Tpu."""

    def __init__(self, registry: Registry) -> None:
        OperationsService.__init__(self, registry)
        OfferingHandlers.__init__(self, registry.projects)
        self._registry = registry
        self._nodes = Nodes(registry)
        self._admission = Admission(registry)
        self._quota = Quota(registry)
        self._interruptions = Interruptions(registry, self._nodes)
        self.queued_resources = QueuedResources(registry, self._nodes, self._admission, self._quota)
        self._nodes.on_node_removed = self.queued_resources.engine.on_node_removed
        self.effects = {
            **self._nodes.effects,
            **self._interruptions.effects,
            **self.queued_resources.engine.effects,
        }

    async def resume(self) -> None:
        await self._nodes.resume()

    async def list_nodes(self, request: Any, caller: Caller) -> Any:
        project, zone = self._project_and_zone(request.parent)
        prefix = f"projects/{project['id']}/locations/"
        if zone != "-":
            prefix += f"{zone}/"
        nodes = [*self._nodes.all(prefix), *map(as_v2, list_v1(self._registry.store, prefix))]
        nodes.sort(key=lambda node: str(node.name))
        rows, token = page(nodes, request.page_size, request.page_token, lambda n: str(n.name))
        return cloud_tpu.ListNodesResponse.pb()(nodes=rows, next_page_token=token)

    async def get_node(self, request: Any, caller: Caller) -> Any:
        v1_node = find_v1(self._registry.store, self._full_name(request.name))
        return self._get(request.name) if v1_node is None else as_v2(v1_node)

    async def create_node(
        self,
        request: Any,
        caller: Caller,
        *,
        api: str = "v2",
        extras: Mapping[str, Any] | None = None,
    ) -> Any:
        """`extras`: fields that only another API version has."""
        project, zone = self._project_and_zone(request.parent)
        check_node_id(request.node_id)
        admitted = self._admission.check(project, zone, request.node)
        name = f"projects/{project['id']}/locations/{zone}/nodes/{request.node_id}"
        demand = Demand(zone, admitted.accelerator, wants_spot(request.node))
        self._require_unused_name(name)
        self._quota.require(project, [demand])
        try:
            endpoints = await self._nodes.reserve(name, admitted.accelerator.workers)
        except MachineError as error:
            raise ApiError("RESOURCE_EXHAUSTED", str(error)) from error
        self._require_unused_name(name)  # a concurrent request may have created it
        self._quota.require(project, [demand])
        node = self._admission.build(name, request.node, project, admitted, endpoints)
        refusal = self._admission.creation_failure(project, node)
        with self._registry.store.transaction():
            self._nodes.save(node)
            self._nodes.save_extras(name, extras or {})
            record = self._nodes.begin("create", node, api=api, refusal=refusal)
        return self._operations.message(record)

    async def delete_node(self, request: Any, caller: Caller, *, api: str = "v2") -> Any:
        if self._is_v1_node(request.name):
            return await self._v1().delete_node(request, caller, api=api)
        node = self._get(request.name)
        if node.state == NodeState.DELETING:
            raise bad_request("delete is not supported while in state DELETING")
        with self._registry.store.transaction():
            node.state = NodeState.DELETING
            self._nodes.save(node)
            self._nodes.abort_pending(node.name)
            record = self._nodes.begin("delete", node, api=api)
        return self._operations.message(record)

    async def update_node(self, request: Any, caller: Caller, *, api: str = "v2") -> Any:
        node = self._get(request.node.name)
        self._require_state("update", node, NodeState.READY, NodeState.STOPPED)
        paths = sorted(set(request.update_mask.paths))
        refused = [path for path in paths if path not in _UPDATABLE]
        if refused or not paths:
            raise bad_request(
                f"The update mask {paths} has fields that cannot be updated: {refused}."
            )
        fields = [path.partition(".")[0] for path in paths]
        if "labels" in fields:
            check_labels(request.node.labels)
        project, zone = self._project_and_zone(node.name)
        if "data_disks" in fields:
            disks = request.node.data_disks
            self._admission.check_disks(project, zone, node.accelerator_type, disks)
        if _EXTERNAL in paths:
            self._admission.check_external(project, zone, [request.node.network_config])
        changes = Node()
        for field in fields:
            if field == "description":
                changes.description = request.node.description
            elif field == "network_config":
                enabled = request.node.network_config.enable_external_ips
                changes.network_config.enable_external_ips = enabled
            else:
                getattr(changes, field).MergeFrom(getattr(request.node, field))
        record = self._nodes.begin(
            "update",
            node,
            api=api,
            fields=fields,
            changes=json_format.MessageToDict(changes),
            port=node.metadata.get(PORT_KEY, "") if "metadata" in fields else "",
        )
        return self._operations.message(record)

    async def stop_node(self, request: Any, caller: Caller, *, api: str = "v2") -> Any:
        if self._is_v1_node(request.name):
            return await self._v1().stop_node(request, caller, api=api)
        node = self._get(request.name)
        self._require_state("stop", node, NodeState.READY)
        if len(node.network_endpoints) > 1:
            raise bad_request("stop is not supported for nodes of several hosts.")
        return self._change_state("stop", node, NodeState.STOPPING, api)

    async def start_node(self, request: Any, caller: Caller, *, api: str = "v2") -> Any:
        if self._is_v1_node(request.name):
            return await self._v1().start_node(request, caller, api=api)
        node = self._get(request.name)
        self._require_state("start", node, NodeState.STOPPED)
        return self._change_state("start", node, NodeState.STARTING, api)

    async def create_queued_resource(self, request: Any, caller: Caller) -> Any:
        document = from_v2(request.queued_resource)
        return self._operations.message(self.queued_resources.create(request, document))

    async def get_queued_resource(self, request: Any, caller: Caller) -> Any:
        return as_v2_queued(self.queued_resources.get(request.name))

    async def list_queued_resources(self, request: Any, caller: Caller) -> Any:
        rows, token = self.queued_resources.list_page(request)
        return extended(cloud_tpu.ListQueuedResourcesResponse.pb())(
            queued_resources=[as_v2_queued(row) for row in rows], next_page_token=token
        )

    async def delete_queued_resource(self, request: Any, caller: Caller) -> Any:
        return self._operations.message(self.queued_resources.delete(request))

    async def reset_queued_resource(self, request: Any, caller: Caller) -> Any:
        return self._operations.message(self.queued_resources.reset(request))

    def reconfigure_all(self, project: str) -> None:
        self._nodes.reconfigure_all(project)

    def users_of_network(self, network: str) -> list[str]:
        nodes = self._nodes.all(f"projects/{network.split('/')[1]}/")
        return [str(node.name) for node in nodes if node.network_config.network == network]

    def users_of_disks(self, project: str) -> dict[str, list[str]]:
        users: dict[str, list[str]] = {}
        for node in self._nodes.all(f"projects/{project}/"):
            for disk in node.data_disks:
                users.setdefault(relative_name(disk.source_disk), []).append(node.name)
        return users

    def tunnel_target(self, project: str, zone: str, host: str) -> str | None:
        """A worker is identified by its hostname."""
        for node in self._nodes.all(f"{project}/locations/{zone}/nodes/"):
            if node.state != NodeState.READY:
                continue
            for machine in self._nodes.worker_names(node.name, len(node.network_endpoints)):
                attributes = self._registry.host.guest_attributes(machine).get("tpu", {})
                if attributes.get("hostname") == host:
                    return machine
        return None

    def interface(self, machine: str) -> NetworkInterface | None:
        name, _, worker = machine.partition("/workers/")
        node = self._nodes.find(name) if worker else None
        if node is None:
            return None
        config = node.network_configs[0] if node.network_configs else node.network_config
        endpoint = node.network_endpoints[int(worker)]
        project = name.split("/")[1]
        return NetworkInterface(
            machine=machine,
            address=endpoint.ip_address,
            network=full_network(self._registry.projects, project, config.network),
            subnetwork=_full_subnetwork(name, config.subnetwork),
            identity=Identity(frozenset(node.tags), node.service_account.email),
            has_external_address=bool(endpoint.access_config.external_ip),
        )

    async def preempt(self, name: str) -> None:
        self._interruptions.preempt(self._get(name))

    async def maintain(self, name: str) -> None:
        self._interruptions.maintain(self._get(name))

    def simulate_maintenance(self, name: str, worker: str, api: str) -> Any:
        """Begin a maintenance event on one worker, "" for the first."""
        node = self._get(name)
        self._require_state("simulateMaintenanceEvent", node, NodeState.READY)
        workers = [str(index) for index in range(len(node.network_endpoints))]
        if worker and worker not in workers:
            raise bad_request(f'There is no worker "{worker}".')
        record = self._interruptions.maintain(node, [int(worker or 0)], api=api)
        return self._operations.message(record)

    async def get_guest_attributes(self, request: Any, caller: Caller) -> Any:
        node = self._get(request.name)
        if node.state != NodeState.READY:
            raise bad_request(
                f"getGuestAttributes is not supported while in state {NodeState(node.state).name}"
            )
        query_namespace, _, key = request.query_path.partition("/")
        count = len(node.network_endpoints)
        workers = [worker for worker in request.worker_ids if worker] or map(str, range(count))
        answer = cloud_tpu.GetGuestAttributesResponse.pb()()
        for worker in workers:
            if not worker.isdigit() or int(worker) >= count:
                raise bad_request(f'There is no worker "{worker}".')
            attributes = self._registry.host.guest_attributes(f"{node.name}/workers/{worker}")
            entry = answer.guest_attributes.add(query_path=request.query_path)
            entry.query_value.SetInParent()
            for namespace, values in attributes.items():
                for name, value in values.items():
                    if query_namespace in ("", namespace) and key in ("", name):
                        entry.query_value.items.add(namespace=namespace, key=name, value=value)
        return answer

    async def generate_service_identity(self, request: Any, caller: Caller) -> Any:
        project, _ = self._project_and_zone(request.parent)
        email = f"service-{project['number']}@gcp-sa-tpu.iam.gserviceaccount.com"
        return cloud_tpu.GenerateServiceIdentityResponse.pb()(identity={"email": email})

    def _project_and_zone(self, parent: str) -> tuple[Project, str]:
        project, zone = parse_location(parent)
        return self._registry.projects.require(project, "tpu.googleapis.com"), zone

    def _full_name(self, name: str) -> str:
        project, zone = self._project_and_zone(name)
        return f"projects/{project['id']}/locations/{zone}/nodes/{name.partition('/nodes/')[2]}"

    def _is_v1_node(self, name: str) -> bool:
        return self._registry.store.get(KIND_V1, self._full_name(name)) is not None

    def _v1(self) -> Any:
        return self._registry.service("tpu_v1").handler("google.cloud.tpu.v1.Tpu")

    def _get(self, name: str) -> Any:
        node = self._nodes.find(self._full_name(name))
        if node is None and self._is_v1_node(name):
            raise bad_request("This is not supported for nodes created by API version V1.")
        if node is None:
            raise not_found(name)
        return node

    def _require_unused_name(self, name: str) -> None:
        """The name must be unused in both API versions."""
        for kind in (KIND, KIND_V1):
            if self._registry.store.get(kind, name) is not None:
                raise already_exists(name)

    @staticmethod
    def _require_state(verb: str, node: Any, *states: int) -> None:
        if node.state not in states:
            raise bad_request(
                f"{verb} is not supported while in state {NodeState(node.state).name}"
            )

    def _change_state(self, verb: str, node: Any, state: int, api: str) -> Any:
        with self._registry.store.transaction():
            node.state = state
            self._nodes.save(node)
            record = self._nodes.begin(verb, node, api=api)
        return self._operations.message(record)


def _full_subnetwork(node: str, text: str) -> str:
    """A subnetwork given as a link or a bare name, in the node's project and region."""
    name = relative_name(text)
    if name.startswith("projects/"):
        return name
    _, project, _, zone, *_ = node.split("/")
    region = region_of(zone)
    return f"projects/{project}/regions/{region}/subnetworks/{name.rpartition('/')[2]}"
