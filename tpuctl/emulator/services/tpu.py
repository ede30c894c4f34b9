"""Cloud TPU v2: nodes and their operations, types, runtimes and zones.

Queued resources and the v1 and v2alpha1 APIs are not imitated yet: they answer UNIMPLEMENTED.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

from google.cloud.tpu_v2.types import cloud_tpu
from google.protobuf import json_format

from tpuctl import catalog
from tpuctl.emulator.machine import Endpoint, MachineError
from tpuctl.emulator.paging import page
from tpuctl.emulator.projects import Project
from tpuctl.emulator.services.operations import OperationsService
from tpuctl.emulator.services.tpu_nodes import KIND, PORT_KEY, Node, Nodes, State, created_now
from tpuctl.emulator.services.tpu_offer import (
    Offer,
    bad_request,
    check_offer,
    describe,
    parse_location,
)
from tpuctl.emulator.status import ApiError, invalid, missing
from tpuctl.emulator.world import Caller, World

__all__ = ["TpuService"]

# A name with an underscore was accepted in a public report (2021); the rest is Compute's rule.
_NODE_ID = re.compile(r"[a-z](?:[a-z0-9_-]{0,61}[a-z0-9])?")
_UPDATABLE = ("description", "labels", "tags", "metadata")
_TPU_PORT = 8470
_DEFAULT_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


class TpuService(OperationsService, Offer):
    """The handlers of google.cloud.tpu.v2.Tpu."""

    def __init__(self, world: World) -> None:
        OperationsService.__init__(self, world)
        Offer.__init__(self, world.projects)
        self._world = world
        self._nodes = Nodes(world)
        self.effects = self._nodes.effects

    async def resume(self) -> None:
        await self._nodes.resume()

    async def list_nodes(self, request: Any, caller: Caller) -> Any:
        project, zone = self._place(request.parent)
        prefix = f"projects/{project['id']}/locations/"
        nodes = self._nodes.all(prefix if zone == "-" else f"{prefix}{zone}/")
        rows, token = page(nodes, request.page_size, request.page_token, lambda n: str(n.name))
        return cloud_tpu.ListNodesResponse.pb()(nodes=rows, next_page_token=token)

    async def get_node(self, request: Any, caller: Caller) -> Any:
        return self._get(request.name)

    async def create_node(self, request: Any, caller: Caller) -> Any:
        project, zone = self._place(request.parent)
        node_id = request.node_id
        if not _NODE_ID.fullmatch(node_id):
            raise bad_request(f'The node id "{node_id}" is invalid.')
        accelerator = check_offer(zone, request.node)
        network = self._check_network(project, request.node)
        name = f"projects/{project['id']}/locations/{zone}/nodes/{node_id}"
        self._refuse_second(name)
        try:
            endpoints = await self._nodes.reserve(name, accelerator.workers)
        except MachineError as error:
            raise ApiError("RESOURCE_EXHAUSTED", str(error)) from error
        self._refuse_second(name)  # another call may have come in between
        node = self._new_node(name, request.node, project, accelerator, network, endpoints)
        with self._world.store.transaction():
            self._nodes.save(node)
            record = self._nodes.begin("create", node)
        return self._operations.message(record)

    async def delete_node(self, request: Any, caller: Caller) -> Any:
        node = self._get(request.name)
        if node.state == State.DELETING:
            raise bad_request("delete is not supported while in state DELETING")
        with self._world.store.transaction():
            node.state = State.DELETING
            self._nodes.save(node)
            self._nodes.abort_pending(node.name)
            record = self._nodes.begin("delete", node)
        return self._operations.message(record)

    async def update_node(self, request: Any, caller: Caller) -> Any:
        node = self._get(request.node.name)
        self._require_state("update", node, State.READY, State.STOPPED)
        fields = sorted({path.partition(".")[0] for path in request.update_mask.paths})
        refused = [name for name in fields if name not in _UPDATABLE]
        if refused or not fields:
            raise bad_request(f"The update mask {fields} names what cannot be updated: {refused}.")
        changes = Node()
        for field in fields:
            if field == "description":
                changes.description = request.node.description
            else:
                getattr(changes, field).MergeFrom(getattr(request.node, field))
        record = self._nodes.begin(
            "update",
            node,
            fields=fields,
            changes=json_format.MessageToDict(changes),
            port=node.metadata.get(PORT_KEY, "") if "metadata" in fields else "",
        )
        return self._operations.message(record)

    async def stop_node(self, request: Any, caller: Caller) -> Any:
        node = self._get(request.name)
        self._require_state("stop", node, State.READY)
        if len(node.network_endpoints) > 1:
            raise bad_request("stop is not supported for nodes of several hosts.")
        return self._change_state("stop", node, State.STOPPING)

    async def start_node(self, request: Any, caller: Caller) -> Any:
        node = self._get(request.name)
        self._require_state("start", node, State.STOPPED)
        return self._change_state("start", node, State.STARTING)

    async def get_guest_attributes(self, request: Any, caller: Caller) -> Any:
        node = self._get(request.name)
        if node.state != State.READY:
            raise bad_request(
                f"getGuestAttributes is not supported while in state {State(node.state).name}"
            )
        wanted, _, key = request.query_path.partition("/")
        count = len(node.network_endpoints)
        chosen = [worker for worker in request.worker_ids if worker] or map(str, range(count))
        answer = cloud_tpu.GetGuestAttributesResponse.pb()()
        for worker in chosen:
            if not worker.isdigit() or int(worker) >= count:
                raise bad_request(f'There is no worker "{worker}".')
            attributes = self._world.host.guest_attributes(f"{node.name}/workers/{worker}")
            entry = answer.guest_attributes.add(query_path=request.query_path)
            entry.query_value.SetInParent()
            for namespace, values in attributes.items():
                for name, value in values.items():
                    if wanted in ("", namespace) and key in ("", name):
                        entry.query_value.items.add(namespace=namespace, key=name, value=value)
        return answer

    async def generate_service_identity(self, request: Any, caller: Caller) -> Any:
        project, _ = self._place(request.parent)
        email = f"service-{project['number']}@gcp-sa-tpu.iam.gserviceaccount.com"
        return cloud_tpu.GenerateServiceIdentityResponse.pb()(identity={"email": email})

    def _place(self, parent: str) -> tuple[Project, str]:
        project, zone = parse_location(parent)
        return self._world.projects.require(project, "tpu.googleapis.com"), zone

    def _get(self, name: str) -> Any:
        project, zone = self._place(name)
        node_id = name.partition("/nodes/")[2]
        found = self._nodes.find(f"projects/{project['id']}/locations/{zone}/nodes/{node_id}")
        if found is None:
            raise missing(f"Resource '{name}' was not found")
        return found

    def _refuse_second(self, name: str) -> None:
        if self._world.store.get(KIND, name) is not None:
            info = {
                "@type": "type.googleapis.com/google.rpc.ResourceInfo",
                "resourceName": name,
            }
            raise ApiError("ALREADY_EXISTS", f"Resource '{name}' already exists", details=[info])

    @staticmethod
    def _require_state(verb: str, node: Any, *states: int) -> None:
        if node.state not in states:
            raise bad_request(f"{verb} is not supported while in state {State(node.state).name}")

    def _change_state(self, verb: str, node: Any, state: int) -> Any:
        with self._world.store.transaction():
            node.state = state
            self._nodes.save(node)
            record = self._nodes.begin(verb, node)
        return self._operations.message(record)

    def _check_network(self, project: Project, node: Any) -> str:
        """The full name of the network that the node joins; it must be there."""
        if node.HasField("network_config") and node.network_configs:
            raise bad_request("network_config and network_configs are mutually exclusive.")
        config = node.network_configs[0] if node.network_configs else node.network_config
        text = config.network or "default"
        found = re.search(r"projects/([^/]+)/global/networks/([^/]+)$", text)
        owner, name = (found[1], found[2]) if found else (project["id"], text.rpartition("/")[2])
        full = f"projects/{owner}/global/networks/{name}"
        if self._world.store.get("compute.networks", full) is None:
            raise missing(f"The resource '{full}' was not found")
        return full

    def _new_node(
        self,
        name: str,
        asked: Any,
        project: Project,
        accelerator: catalog.AcceleratorType,
        network: str,
        endpoints: Sequence[Endpoint],
    ) -> Any:
        node = Node()
        node.CopyFrom(asked)
        # Output only: whatever a client sent in them does not count.
        for field in ("health", "health_description", "symptoms", "queued_resource"):
            node.ClearField(field)
        node.ClearField("network_endpoints")
        node.name = name
        node.id = secrets.randbits(62)
        node.state = State.CREATING
        node.api_version = cloud_tpu.Node.ApiVersion.V2
        node.accelerator_type = accelerator.name
        config = describe(accelerator)
        if config:
            node.accelerator_config.CopyFrom(cloud_tpu.AcceleratorConfig.pb()(**config))
        created_now(node)
        if not node.service_account.email or node.service_account.email == "default":
            node.service_account.email = (
                f"{project['number']}-compute@developer.gserviceaccount.com"
            )
        if not node.service_account.scope:
            node.service_account.scope.extend(_DEFAULT_SCOPES)
        if not node.network_configs:
            node.network_config.network = network
            if not node.network_config.subnetwork:
                region = catalog.region_of(name.split("/")[3])
                base = network.partition("/global/")[0]
                subnetwork = f"{base}/regions/{region}/subnetworks/{network.rpartition('/')[2]}"
                node.network_config.subnetwork = subnetwork
        node.scheduling_config.SetInParent()
        node.shielded_instance_config.SetInParent()
        if not node.cidr_block:
            node.cidr_block = f"10.{128 + node.id % 64}.0.0/20"
        configs = list(node.network_configs) or [node.network_config]
        for endpoint in endpoints:
            entry = node.network_endpoints.add(ip_address=endpoint.address, port=_TPU_PORT)
            if configs[0].enable_external_ips:
                entry.access_config.external_ip = endpoint.address
        ports = [str(endpoint.ssh_port) for endpoint in endpoints]
        if set(ports) != {"22"}:
            node.metadata[PORT_KEY] = ports[0] if len(set(ports)) == 1 else ",".join(ports)
        if sum(len(key) + len(value) for key, value in node.metadata.items()) > 512 * 1024:
            raise invalid("The metadata is larger than 512 KiB.")
        return node
