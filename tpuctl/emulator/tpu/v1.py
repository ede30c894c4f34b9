"""Cloud TPU v1: TPU nodes, which serve TensorFlow to a controller."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import Any

from google.cloud.tpu_v1.types import cloud_tpu as v1

from tpuctl import catalog
from tpuctl.emulator.machines.interface import Endpoint, MachineError
from tpuctl.emulator.state.errors import ApiError, missing
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.state.resource_names import full_network
from tpuctl.emulator.tpu.admission import Admission, check_labels, check_node_id
from tpuctl.emulator.tpu.interruptions import Interruptions
from tpuctl.emulator.tpu.nodes import KIND as KIND_V2
from tpuctl.emulator.tpu.nodes import Node as NodeV2
from tpuctl.emulator.tpu.nodes import NodeState, set_create_time
from tpuctl.emulator.tpu.offerings import (
    already_exists,
    bad_request,
    check_type,
    not_found,
    parse_location,
)
from tpuctl.emulator.tpu.quota import Demand, Quota, wants_spot
from tpuctl.emulator.tpu.v1_network import (
    choose_range,
    invalid_argument,
    read_range,
    subnetworks_of,
)
from tpuctl.emulator.tpu.v1_nodes import NodesV1
from tpuctl.emulator.tpu.v1_view import NodeV1, as_v1
from tpuctl.emulator.wire.machine_service import MachineService, NetworkInterface
from tpuctl.emulator.wire.operations_service import OperationsService
from tpuctl.emulator.wire.paging import page
from tpuctl.emulator.wire.registry import Caller, Registry

__all__ = ["TpuV1Service"]

_GENERATIONS = ("v2", "v3")  # v4 and later are TPU VMs only
# terraform-provider-google issue 22526 and skypilot pull request 5593, both of 2025.
_DENIED = (
    "Your request to provision TPU Node has been denied. Please migrate to TPU VM Architecture or "
    "contact Cloud TPU team to gain TPU Node access. "
    "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm#from-tpu-node-to-tpu-vm"
)


class TpuV1Service(OperationsService, MachineService):
    """Handlers of google.cloud.tpu.v1.Tpu.

    Nodes created by v2 are returned too, in v1's form, but cannot be changed by v1.
    """

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._registry = registry
        self._nodes = NodesV1(registry)
        self._quota = Quota(registry)
        self._interruptions = Interruptions(registry, self._nodes)
        self._admission = Admission(registry)
        self.effects = {**self._nodes.effects, **self._interruptions.effects}

    async def resume(self) -> None:
        await self._nodes.resume()

    async def list_nodes(self, request: Any, caller: Caller) -> Any:
        project, zone = self._project_and_zone(request.parent)
        prefix = f"projects/{project['id']}/locations/"
        if zone != "-":
            prefix += f"{zone}/"
        nodes = self._nodes.all(prefix)
        nodes += [
            as_v1(NodeV2.FromString(body))
            for _, body in self._registry.store.items(KIND_V2, prefix)
        ]
        nodes.sort(key=_name_of)
        rows, token = page(nodes, request.page_size, request.page_token, _name_of)
        return v1.ListNodesResponse.pb()(nodes=rows, next_page_token=token)

    async def get_node(self, request: Any, caller: Caller) -> Any:
        name = self._full_name(request.name)
        node = self._nodes.find(name)
        if node is not None:
            return node
        body = self._registry.store.get(KIND_V2, name)
        if body is None:
            raise not_found(request.name)
        return as_v1(NodeV2.FromString(body))

    async def create_node(self, request: Any, caller: Caller) -> Any:
        project, zone = self._project_and_zone(request.parent)
        check_node_id(request.node_id)
        check_labels(request.node.labels)
        accelerator = check_type(zone, request.node.accelerator_type, _GENERATIONS)
        self._check_version(request.node.tensorflow_version)
        network = self._network_of(request.node, project["id"])
        if self._registry.store.get("compute.networks", network) is None:
            raise missing(f"The resource '{network}' was not found")
        scheduling = request.node.scheduling_config
        if scheduling.preemptible and scheduling.reserved:
            raise invalid_argument("A node cannot be both preemptible and reserved.")
        name = f"projects/{project['id']}/locations/{zone}/nodes/{request.node_id}"
        self._require_unused_name(name)
        self._choose_range(request.node, accelerator, network)  # validates the range
        self._quota.require(project, [Demand(zone, accelerator, wants_spot(request.node))])
        if self._registry.settings.get("nodes") == "denied":
            raise ApiError("FAILED_PRECONDITION", _DENIED)
        try:
            endpoints = await self._nodes.reserve(name, accelerator.workers)
        except MachineError as error:
            raise ApiError("RESOURCE_EXHAUSTED", str(error)) from error
        self._require_unused_name(name)  # a concurrent request may have created it
        block = self._choose_range(request.node, accelerator, network)
        node = self._new_node(name, request.node, project, network, block, endpoints)
        refusal = self._admission.creation_failure(project, node)
        with self._registry.store.transaction():
            self._nodes.save(node)
            record = self._nodes.begin("create", node, refusal=refusal)
        return self._operations.message(record)

    async def delete_node(self, request: Any, caller: Caller, *, api: str = "v1") -> Any:
        node = self._require(request.name)
        if node.state == NodeState.DELETING:
            raise bad_request("delete is not supported while in state DELETING")
        with self._registry.store.transaction():
            node.state = NodeState.DELETING
            self._nodes.save(node)
            self._nodes.abort_pending(node.name)
            record = self._nodes.begin("delete", node, api=api)
        return self._operations.message(record)

    async def stop_node(self, request: Any, caller: Caller, *, api: str = "v1") -> Any:
        node = self._require(request.name)
        self._require_state("stop", node, NodeState.READY)
        if len(node.network_endpoints) > 1:
            raise bad_request("stop is not supported for nodes of several hosts.")
        return self._change_state("stop", node, NodeState.STOPPING, api=api)

    async def start_node(self, request: Any, caller: Caller, *, api: str = "v1") -> Any:
        node = self._require(request.name)
        self._require_state("start", node, NodeState.STOPPED)
        return self._change_state("start", node, NodeState.STARTING, api=api)

    async def reimage_node(self, request: Any, caller: Caller) -> Any:
        node = self._require(request.name)
        self._check_version(request.tensorflow_version)
        self._require_state("reimage", node, NodeState.READY)
        version = request.tensorflow_version
        return self._change_state("reimage", node, NodeState.REIMAGING, version=version)

    async def preempt(self, name: str) -> None:
        self._interruptions.preempt(self._require(name))

    async def maintain(self, name: str) -> None:
        self._interruptions.maintain(self._require(name), api="v1")

    def users_of_network(self, network: str) -> list[str]:
        project = network.split("/")[1]
        nodes = self._nodes.all(f"projects/{project}/")
        return [node.name for node in nodes if self._network_of(node, project) == network]

    def interface(self, machine: str) -> NetworkInterface | None:
        name, _, worker = machine.partition("/workers/")
        node = (
            self._nodes.find(name.replace("/v1nodes/", "/nodes/")) if "/v1nodes/" in name else None
        )
        if node is None:
            return None
        return NetworkInterface(
            machine=machine,
            address=node.network_endpoints[int(worker)].ip_address,
            network=self._network_of(node, name.split("/")[1]),
            range=node.cidr_block,
            is_managed=True,
        )

    # Accelerator types and TensorFlow versions.

    async def list_tensor_flow_versions(self, request: Any, caller: Caller) -> Any:
        _, zone = self._project_and_zone(request.parent)
        offered = catalog.node_versions() if zone in catalog.zones() else ()
        names = sorted(entry.version for entry in offered)
        rows, token = page(names, request.page_size, request.page_token, str)
        answer = v1.ListTensorFlowVersionsResponse.pb()(next_page_token=token)
        for version in rows:
            answer.tensorflow_versions.add(
                name=f"{request.parent}/tensorflowVersions/{version}", version=version
            )
        return answer

    async def get_tensor_flow_version(self, request: Any, caller: Caller) -> Any:
        _, zone = self._project_and_zone(request.name)
        version = request.name.partition("/tensorflowVersions/")[2]
        if catalog.node_version(version) is None or zone not in catalog.zones():
            raise not_found(request.name)
        return v1.TensorFlowVersion.pb()(name=request.name, version=version)

    async def list_accelerator_types(self, request: Any, caller: Caller) -> Any:
        _, zone = self._project_and_zone(request.parent)
        names = sorted(
            name
            for name, accelerator in catalog.accelerator_types().items()
            if accelerator.generation in _GENERATIONS and zone in accelerator.zones
        )
        rows, token = page(names, request.page_size, request.page_token, str)
        answer = v1.ListAcceleratorTypesResponse.pb()(next_page_token=token)
        for name in rows:
            answer.accelerator_types.add(
                name=f"{request.parent}/acceleratorTypes/{name}", type_=name
            )
        return answer

    async def get_accelerator_type(self, request: Any, caller: Caller) -> Any:
        _, zone = self._project_and_zone(request.name)
        name = request.name.partition("/acceleratorTypes/")[2]
        accelerator = catalog.accelerator_type(name)
        if (
            accelerator is None
            or accelerator.generation not in _GENERATIONS
            or zone not in accelerator.zones
        ):
            raise not_found(request.name)
        return v1.AcceleratorType.pb()(name=request.name, type_=name)

    # Helpers.

    def _project_and_zone(self, parent: str) -> tuple[Project, str]:
        project, zone = parse_location(parent)
        return self._registry.projects.require(project, "tpu.googleapis.com"), zone

    def _full_name(self, name: str) -> str:
        project, zone = self._project_and_zone(name)
        return f"projects/{project['id']}/locations/{zone}/nodes/{name.partition('/nodes/')[2]}"

    def _require(self, name: str) -> Any:
        """A node created by v1, for changing it."""
        full = self._full_name(name)
        node = self._nodes.find(full)
        if node is None and self._registry.store.get(KIND_V2, full) is not None:
            raise bad_request("This is not supported for nodes created by API version V2.")
        if node is None:
            raise not_found(name)
        return node

    @staticmethod
    def _check_version(version: str) -> None:
        """Google's wording, tensorflow/tpu issue 877 (2020)."""
        if catalog.node_version(version) is None:
            raise invalid_argument(f'The field "TensorflowVersion" cannot be "{version}".')

    def _require_unused_name(self, name: str) -> None:
        """The name must be unused in both API versions."""
        for kind in (self._nodes.kind, KIND_V2):
            if self._registry.store.get(kind, name) is not None:
                raise already_exists(name)

    @staticmethod
    def _require_state(verb: str, node: Any, *states: int) -> None:
        if node.state not in states:
            raise bad_request(
                f"{verb} is not supported while in state {NodeState(node.state).name}"
            )

    def _change_state(self, verb: str, node: Any, state: int, **more: Any) -> Any:
        with self._registry.store.transaction():
            node.state = state
            self._nodes.save(node)
            record = self._nodes.begin(verb, node, **more)
        return self._operations.message(record)

    def _network_of(self, node: Any, project_id: str) -> str:
        return full_network(self._registry.projects, project_id, node.network)

    def _choose_range(
        self, requested: Any, accelerator: catalog.AcceleratorType, network: str
    ) -> IPv4Network:
        if requested.cidr_block and requested.use_service_networking:
            raise invalid_argument(
                'The field "cidr_block" cannot be given when "use_service_networking" is.'
            )
        used_ranges = subnetworks_of(self._registry.store, network)
        used_ranges += [
            IPv4Network(node.cidr_block)
            for node in self._nodes.all()
            if self._network_of(node, node.name.split("/")[1]) == network
        ]
        if requested.cidr_block:
            return read_range(requested.cidr_block, accelerator, network, used_ranges)
        return choose_range(accelerator, used_ranges)

    @staticmethod
    def _new_node(
        name: str,
        requested: Any,
        project: Project,
        network: str,
        block: IPv4Network,
        endpoints: Sequence[Endpoint],
    ) -> Any:
        prefix = f"projects/{project['id']}/"
        node = NodeV1(
            name=name,
            description=requested.description,
            accelerator_type=requested.accelerator_type,
            tensorflow_version=requested.tensorflow_version,
            network=network.removeprefix(prefix),
            cidr_block=str(block),
            use_service_networking=requested.use_service_networking,
            labels=dict(requested.labels),
            state=NodeState.CREATING,
            api_version=v1.Node.ApiVersion.V1,
            service_account=f"service-{project['number']}@cloud-tpu.iam.gserviceaccount.com",
            ip_address=endpoints[0].address,
            port=str(endpoints[0].serving_port),
        )
        node.scheduling_config.preemptible = requested.scheduling_config.preemptible
        node.scheduling_config.reserved = requested.scheduling_config.reserved
        for endpoint in endpoints:
            node.network_endpoints.add(ip_address=endpoint.address, port=endpoint.serving_port)
        set_create_time(node)
        return node


def _name_of(node: Any) -> str:
    return str(node.name)
