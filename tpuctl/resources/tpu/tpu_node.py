"""TPU VM nodes: one or more workers with TPU chips."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from tpuctl.cloud.operations import long_operation
from tpuctl.engine.resource import Report
from tpuctl.errors import NotFound
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.status.status import NodeStatus
from tpuctl.model.text.names import STACK_LABEL
from tpuctl.model.text.os_login import os_login_in
from tpuctl.model.text.ssh_key_lines import ssh_keys_with
from tpuctl.resources.base import STACK_UPDATE, Query, time_of
from tpuctl.resources.machines.instance_metadata import (
    metadata_of,
    prerequisites,
)
from tpuctl.resources.tpu.node_lifecycle import (
    CREATE_SECONDS,
    DEAD_STATES,
    SshNode,
    TpuApiNode,
    capacity_of,
)
from tpuctl.resources.tpu.tpu_node_spec import (
    boot_key_differences,
    boot_key_of,
    capacity_differences,
    disk_addresses,
    encrypted,
    node_body,
    node_differences,
    runtime_reason,
    stale_because,
    stale_fields,
)

UPDATE_SECONDS = 900.0
QUEUED = ("queued_resource",)  # fields of the deletion of a node that its request deletes


class TpuNode(SshNode, TpuApiNode):
    """Created with the stack's label, tag, account and key; recreated after preemption."""

    kind = "node"
    label = "TPU VMs"
    client_name = "tpu"
    permissions = """
        read tpu.viewer tpu.nodes.get tpu.nodes.list
        create tpu.admin tpu.nodes.create tpu.nodes.delete tpu.operations.get
        create compute.viewer compute.addresses.list compute.disks.list compute.instances.list
        create compute.viewer compute.routers.list
        create iam.serviceAccountAdmin iam.serviceAccounts.list
        create iam.serviceAccountUser iam.serviceAccounts.actAs
        update:labels,tags,ssh-keys,limits,metadata tpu.admin tpu.nodes.update tpu.operations.get
        update:state tpu.admin tpu.nodes.start tpu.operations.get
    """
    optional: ClassVar = {"update": STACK_UPDATE}
    boot_key: str | None = None  # as last observed, if the stack has a key; empty: Google's

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return not (stack.is_node or stack.is_compute or stack.queue)

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        client = query.cloud.client("tpu")
        nodes = client.list_nodes(query.all_locations, **query.options)
        for node in query.items(nodes, "nodes"):
            if not node.api_version.name.startswith("V1"):
                status = _status(node)
                yield InventoryItem(
                    cls,
                    status.name,
                    node.labels.get(STACK_LABEL, ""),
                    status.zone,
                    status.state,
                    status.accelerator_type,
                    status.created,
                    capacity=capacity_of(node.scheduling_config),
                    request=node.queued_resource.rpartition("/")[2],
                    external_addresses=sum(
                        1
                        for endpoint in node.network_endpoints
                        if endpoint.access_config.external_ip
                    ),
                    node=status,
                )

    @property
    def after(self) -> frozenset[str]:
        needed = {self.network.address, *disk_addresses(self.stack)}
        return frozenset(needed | prerequisites(self.stack))

    async def observe(self) -> Any | None:
        node = await super().observe()
        if node is not None and self.stack.crypto_key is not None:
            node_json = await self._rest("GET", f"/v2/{self.path}")
            self.boot_key = boot_key_of(node_json)
        return node

    def metadata(self, observed: Any) -> dict[str, str]:
        """The metadata of a node that exists."""
        startup = self.cloud.endpoint.runs_startup_scripts
        stack = self.stack.on_runtime(observed.runtime_version)
        return metadata_of(stack, self.key_line, startup=startup)

    def diff(self, observed: Any | None) -> Change:
        type_name = self.stack.accelerator.name
        if observed is None:
            because = f"no node in {self.stack.zone}: creating {type_name}"
            return self.create(because + runtime_reason(self.stack))
        self.check(observed)
        state = observed.state.name
        if state in DEAD_STATES:
            return self.create(f"recreating the node, which is {state}")
        for field, actual, desired in self._differences(observed):
            raise self.difference_error(field, actual, desired)
        change = self.change_to_ready(state)
        if change is not None:
            return change
        labels, tags, metadata = observed.labels, observed.tags, observed.metadata
        stale = stale_fields(self.stack, labels, tags, metadata, self.metadata(observed))
        if stale:
            return self.update(stale_because(stale), stale)
        return self.nothing(f"READY with {type_name}")

    def _differences(self, observed: Any) -> Iterator[tuple[str, str, str]]:
        yield from node_differences(self.stack, observed)
        yield from boot_key_differences(self.stack, self.boot_key)
        if not observed.queued_resource:  # otherwise the request has it
            scheduling = observed.scheduling_config
            yield from capacity_differences(self.stack, scheduling.spot or scheduling.preemptible)

    def removal(self, observed: Any | None) -> Change:
        if observed is None or not self.is_ours(observed):
            return super().removal(observed)
        if observed.queued_resource:
            return Change(self.address, Action.DELETE, "deleted with its queued resource", QUEUED)
        return self.delete(f"{observed.accelerator_type} is charged while it exists")

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            await (self._delete(report) if change.fields == QUEUED else self.remove(report))
        elif change.action is Action.CREATE:
            node = await self.observe()
            if node is not None and node.state.name in DEAD_STATES:
                await self._delete(report)
            await self._create(report)
        elif "state" in change.fields:
            await self.start(report)
        elif "readiness" in change.fields:
            await self._adopt(report)
        else:
            await update_node(self, change.fields)

    async def body(self) -> dict[str, Any]:
        """The node's fields, for direct creation or a queued resource."""
        return node_body(
            self.stack,
            await self.network.usable_name(),
            self.key_line,
            startup=self.cloud.endpoint.runs_startup_scripts,
        )

    async def _create(self, report: Report) -> None:
        body = await self.body()
        operation: Any = None

        async def create() -> None:
            nonlocal operation
            operation = await self.retry_until_visible(lambda: self._request(body), report)

        report("requesting the node", None)
        # `diff` rejects a node that is not ours or differs.
        existing = await self.create_or_adopt(create, self.observe, report, check=self.diff)
        if existing is None:
            report("CREATING", None)
            await long_operation(
                self.cloud, "tpu", operation, subject=self.address, seconds=CREATE_SECONDS
            )
            await self.wait_until_ready(report)
        else:
            await self._adopt(report)

    async def _request(self, body: dict[str, Any]) -> Any:
        """Request the node; returns the operation."""
        if self.stack.crypto_key is None:
            request = {"parent": self.parent, "node_id": self.name, "node": body}
            return (await self.call("tpu", "create_node", request)).operation
        from google.cloud.tpu_v2.types import Node
        from google.longrunning import operations_pb2
        from google.protobuf.json_format import MessageToDict

        node = encrypted(self.stack, MessageToDict(Node.pb(Node(body))))
        path, query = f"/v2/{self.parent}/nodes", {"nodeId": self.name}
        response = await self._rest("POST", path, query=query, body=node)
        return operations_pb2.Operation(name=response["name"])

    async def _rest(self, verb: str, path: str, **more: Any) -> Any:
        rest = self.cloud.client("rest")
        return await self.cloud.call(self.address, rest.call, verb, "tpu", path, **more)

    async def _adopt(self, report: Report) -> None:
        """Wait for a node that another program is creating, perhaps with other keys."""
        await self.wait_until_ready(report)
        change = self.diff(await self.observe())
        if change.action is Action.UPDATE:
            await update_node(self, change.fields)

    async def _delete(self, report: Report) -> None:
        node = await self.observe()
        if node is not None and await self._is_queued(node):
            report("DELETING", None)
            await self.wait_until_deleted(node)  # deleting the request deletes its nodes
        else:
            await self.remove(report)

    async def _is_queued(self, node: Any) -> bool:
        """Whether the node belongs to an existing queued resource."""
        if not node.queued_resource:
            return False
        request = {"name": node.queued_resource}
        return await self.find("tpu", "get_queued_resource", request) is not None


async def update_node(node: TpuNode, fields: Iterable[str]) -> None:
    """Update labels, tags and metadata; additions by others are kept."""
    observed = await node.observe()
    if observed is None:
        raise NotFound(
            "Node not found",
            f"node {node.name} was deleted in the meantime",
            hint="It was deleted manually, or reached a limit. Recreate it:\n    tpuctl up",
        )
    stack, names = node.stack, {*fields}
    changed: dict[str, Any] = {"name": node.path}
    if "labels" in names:
        changed["labels"] = {**observed.labels, **stack.labels}
    if "tags" in names:
        changed["tags"] = [*dict.fromkeys([*observed.tags, *stack.tags])]
    if names & {"limits", "metadata", "ssh-keys"}:
        metadata = {**observed.metadata, **node.metadata(observed)}
        keys = observed.metadata.get("ssh-keys", "")
        metadata["ssh-keys"] = ssh_keys_with(keys, node.key_line)
        changed["metadata"] = metadata
    paths = sorted(changed.keys() - {"name"})
    request = {"node": changed, "update_mask": {"paths": paths}}
    operation = await node.call("tpu", "update_node", request)
    await node.wait_for(operation, UPDATE_SECONDS)


def _status(node: Any) -> NodeStatus:
    """Convert a node of API v2."""
    parts = node.name.split("/")
    endpoints = list(node.network_endpoints)
    ports = [port for port in node.metadata.get("tpuctl-ssh-port", "").split(",") if port]
    if len(ports) < len(endpoints):
        ports = [ports[0] if ports else "22"] * len(endpoints)
    return NodeStatus(
        name=parts[-1],
        id=str(node.id),
        zone=parts[3],
        state=node.state.name,
        health=node.health.name,
        accelerator_type=node.accelerator_type,
        runtime=node.runtime_version,
        created=time_of(node.create_time),
        addresses=tuple(
            endpoint.access_config.external_ip or endpoint.ip_address for endpoint in endpoints
        ),
        ssh_ports=tuple(int(port) for port in ports),
        inner_addresses=tuple(endpoint.ip_address for endpoint in endpoints),
        os_login=os_login_in(node.metadata),
    )
