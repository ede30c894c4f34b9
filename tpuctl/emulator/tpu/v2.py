"""Cloud TPU v2: nodes, queued resources, operations, types, runtimes and zones.

Nodes created by v1 are returned too, marked as such, and can be stopped, started and deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.cloud.tpu_v2.types import cloud_tpu
from google.protobuf import json_format

from tpuctl.emulator.state.firewall_rules import Identity
from tpuctl.emulator.state.locations import region_of
from tpuctl.emulator.state.resource_names import full_network, relative_name
from tpuctl.emulator.tpu.admission import check_labels, check_node_id
from tpuctl.emulator.tpu.extended_messages import extended
from tpuctl.emulator.tpu.node_handlers import NodeHandlers
from tpuctl.emulator.tpu.nodes import PORT_KEY, Node, Nodes, NodeState, require_state
from tpuctl.emulator.tpu.offerings import OfferingHandlers, bad_request
from tpuctl.emulator.tpu.queued_resource_store import node_extras
from tpuctl.emulator.tpu.queued_resources import QueuedResources, as_v2_queued, from_v2
from tpuctl.emulator.tpu.quota import Demand, wants_spot
from tpuctl.emulator.tpu.v1_nodes import NodesV1
from tpuctl.emulator.tpu.v1_view import as_v2
from tpuctl.emulator.wire.machine_service import NetworkInterface
from tpuctl.emulator.wire.registry import Caller, Registry

# From cloud_tpu.proto, UpdateNodeRequest.update_mask, plus the disks, which gcloud updates this
# way: SDK 528, command_lib/compute/tpus/tpu_vm/util.py, GenerateUpdateMask.
_EXTERNAL = "network_config.enable_external_ips"
_UPDATABLE = ("description", "labels", "tags", "metadata", "data_disks", _EXTERNAL)


class TpuService(NodeHandlers, OfferingHandlers):
    """Handlers of google.cloud.tpu.v2.Tpu."""

    list_response = cloud_tpu.ListNodesResponse.pb()

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry, Nodes(registry), NodesV1(registry))
        self.queued_resources = QueuedResources(registry, self._nodes, self._admission, self._quota)
        self._nodes.on_node_removed = self.queued_resources.engine.on_node_removed
        self.effects = {**self.effects, **self.queued_resources.engine.effects}

    def in_own_form(self, node: Any) -> Any:
        return as_v2(node)

    async def create_node(
        self,
        request: Any,
        caller: Caller,
        *,
        api: str = "v2",
        extras: Mapping[str, Any] | None = None,
    ) -> Any:
        """`extras`: fields that the client's node lacks, if another API version has them."""
        project, zone = self._project_and_zone(request.parent)
        check_node_id(request.node_id)
        if extras is None:
            extras = node_extras(json_format.MessageToDict(request.node))
        requested = _as_node(request.node)
        admitted = self._admission.check(project, zone, requested, extras)
        name = f"projects/{project['id']}/locations/{zone}/nodes/{request.node_id}"
        demand = Demand(zone, admitted.accelerator, wants_spot(requested))
        self._require_unused_name(name)
        self._quota.require(project, [demand])
        endpoints = await self._reserve(name, admitted.accelerator.workers)
        self._quota.require(project, [demand])
        node = self._admission.build(name, requested, project, admitted, endpoints)
        refusal = self._admission.creation_failure(project, node)
        with self._registry.store.transaction():
            self._nodes.save(node)
            self._nodes.save_extras(name, extras)
            record = self._nodes.begin("create", node, api=api, refusal=refusal)
        return self._operations.message(record)

    async def get_node(self, request: Any, caller: Caller) -> Any:
        """With its `bootDiskConfig`, which lists leave out."""
        node = await super().get_node(request, caller)
        config = self._nodes.extras(node.name).get("bootDiskConfig")
        if config is None:
            return node
        fields = {**json_format.MessageToDict(node), "bootDiskConfig": config}
        message = extended(cloud_tpu.Node.pb())()
        return json_format.ParseDict(fields, message, ignore_unknown_fields=True)

    async def update_node(self, request: Any, caller: Caller, *, api: str = "v2") -> Any:
        requested = _as_node(request.node)
        node = self._get(requested.name)
        require_state("update", node, NodeState.READY, NodeState.STOPPED)
        paths = sorted(set(request.update_mask.paths))
        refused = [path for path in paths if path not in _UPDATABLE]
        if refused or not paths:
            raise bad_request(
                f"The update mask {paths} has fields that cannot be updated: {refused}."
            )
        fields = [path.partition(".")[0] for path in paths]
        if "labels" in fields:
            check_labels(requested.labels)
        project, zone = self._project_and_zone(node.name)
        if "data_disks" in fields:
            disks = requested.data_disks
            self._admission.check_disks(project, zone, node.accelerator_type, disks)
        if _EXTERNAL in paths:
            self._admission.check_external(project, zone, [requested.network_config])
        changes = Node()
        for field in fields:
            if field == "description":
                changes.description = requested.description
            elif field == "network_config":
                enabled = requested.network_config.enable_external_ips
                changes.network_config.enable_external_ips = enabled
            else:
                getattr(changes, field).MergeFrom(getattr(requested, field))
        record = self._nodes.begin(
            "update",
            node,
            api=api,
            fields=fields,
            changes=json_format.MessageToDict(changes),
            port=node.metadata.get(PORT_KEY, "") if "metadata" in fields else "",
        )
        return self._operations.message(record)

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
            for machine in self._nodes.machine_names(node):
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

    def simulate_maintenance(self, name: str, worker: str, api: str) -> Any:
        """Begin a maintenance event on one worker, "" for the first."""
        node = self._get(name)
        require_state("simulateMaintenanceEvent", node, NodeState.READY)
        workers = [str(index) for index in range(len(node.network_endpoints))]
        if worker and worker not in workers:
            raise bad_request(f'There is no worker "{worker}".')
        record = self._interruptions.maintain(node, [int(worker or 0)], api=api)
        return self._operations.message(record)

    async def get_guest_attributes(self, request: Any, caller: Caller) -> Any:
        node = self._get(request.name)
        require_state("getGuestAttributes", node, NodeState.READY)
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

    def _to_change(self, name: str) -> tuple[Nodes, Any]:
        """Nodes created by v1 too, which end an operation in v2's form."""
        node = self._others.find(self._full_name(name))
        return super()._to_change(name) if node is None else (self._others, node)


def _full_subnetwork(node: str, text: str) -> str:
    """A subnetwork given as a link or a bare name, in the node's project and region."""
    name = relative_name(text)
    if name.startswith("projects/"):
        return name
    _, project, _, zone, *_ = node.split("/")
    region = region_of(zone)
    return f"projects/{project}/regions/{region}/subnetworks/{name.rpartition('/')[2]}"


def _as_node(message: Any) -> Any:
    """The client's message, without the fields that it lacks."""
    fields = json_format.MessageToDict(message)
    return json_format.ParseDict(fields, Node(), ignore_unknown_fields=True)
