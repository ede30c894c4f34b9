"""Cloud TPU v1: TPU nodes, which serve TensorFlow to a controller."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import Any

from google.cloud.tpu_v1.types import cloud_tpu as v1

from tpuctl import catalog
from tpuctl.emulator.machines.interface import Endpoint
from tpuctl.emulator.state.errors import ApiError, missing
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.state.resource_names import full_network
from tpuctl.emulator.state.shared_vpc import may_use
from tpuctl.emulator.tpu.admission import check_labels, check_node_id
from tpuctl.emulator.tpu.node_handlers import NodeHandlers
from tpuctl.emulator.tpu.nodes import Nodes, NodeState, require_state, set_create_time
from tpuctl.emulator.tpu.offerings import check_type, not_found, type_names
from tpuctl.emulator.tpu.quota import Demand, wants_spot
from tpuctl.emulator.tpu.v1_network import (
    choose_range,
    invalid_argument,
    read_range,
    subnetworks_of,
)
from tpuctl.emulator.tpu.v1_nodes import NodesV1
from tpuctl.emulator.tpu.v1_view import NodeV1, as_v1
from tpuctl.emulator.wire.machine_service import NetworkInterface
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.registry import Caller, Registry

_GENERATIONS = ("v2", "v3")  # v4 and later are TPU VMs only
# terraform-provider-google issue 22526 and skypilot pull request 5593, both of 2025.
_DENIED = (
    "Your request to provision TPU Node has been denied. Please migrate to TPU VM Architecture or "
    "contact Cloud TPU team to gain TPU Node access. "
    "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm#from-tpu-node-to-tpu-vm"
)


class TpuV1Service(NodeHandlers):
    """Handlers of google.cloud.tpu.v1.Tpu.

    Nodes created by v2 are returned too, in v1's form, but cannot be changed by v1.
    """

    list_response = v1.ListNodesResponse.pb()

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry, NodesV1(registry), Nodes(registry))

    def in_own_form(self, node: Any) -> Any:
        return as_v1(node)

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
        self._check_shared(project, network, request.node)
        self._require_unused_name(name)
        self._choose_range(request.node, accelerator, network)  # validates the range
        self._quota.require(project, [Demand(zone, accelerator, wants_spot(request.node))])
        if self._registry.settings.get("nodes") == "denied":
            raise ApiError("FAILED_PRECONDITION", _DENIED)
        endpoints = await self._reserve(name, accelerator.workers)
        block = self._choose_range(request.node, accelerator, network)
        node = self._new_node(name, request.node, project, network, block, endpoints)
        refusal = self._admission.creation_failure(project, node)
        with self._registry.store.transaction():
            self._nodes.save(node)
            record = self._nodes.begin("create", node, refusal=refusal)
        return self._operations.message(record)

    async def reimage_node(self, request: Any, caller: Caller) -> Any:
        node, version = self._get(request.name), request.tensorflow_version
        self._check_version(version)
        require_state("reimage", node, NodeState.READY)
        return self._change_state(
            "reimage", self._nodes, node, NodeState.REIMAGING, version=version
        )

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
        rows, token = requested_page(request, sorted(entry.version for entry in offered))
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
        rows, token = requested_page(request, type_names(zone, _GENERATIONS))
        answer = v1.ListAcceleratorTypesResponse.pb()(next_page_token=token)
        for name in rows:
            answer.accelerator_types.add(
                name=f"{request.parent}/acceleratorTypes/{name}", type_=name
            )
        return answer

    async def get_accelerator_type(self, request: Any, caller: Caller) -> Any:
        _, zone = self._project_and_zone(request.name)
        name = request.name.partition("/acceleratorTypes/")[2]
        if name not in type_names(zone, _GENERATIONS):
            raise not_found(request.name)
        return v1.AcceleratorType.pb()(name=request.name, type_=name)

    # Helpers.

    @staticmethod
    def _check_version(version: str) -> None:
        """Google's wording, tensorflow/tpu issue 877 (2020)."""
        if catalog.node_version(version) is None:
            raise invalid_argument(f'The field "TensorflowVersion" cannot be "{version}".')

    def _network_of(self, node: Any, project_id: str) -> str:
        return full_network(self._registry.projects, project_id, node.network)

    def _check_shared(self, project: Project, network: str, node: Any) -> None:
        """Of a host project, only with Service Networking (Node.useServiceNetworking). Wordings:
        guesses."""
        owner = network.split("/")[1]
        if owner == project["id"]:
            return
        if not may_use(self._registry.store, project["id"], owner):
            raise invalid_argument(f'The network "{network}" is not shared with this project.')
        if not node.use_service_networking:
            raise invalid_argument(
                'The field "use_service_networking" is required for networks of other projects.'
            )

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
