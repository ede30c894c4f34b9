"""TPU nodes of API v1: remote TPUs, driven over gRPC from a controller."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network
from typing import Any, ClassVar, Self

from tpuctl.catalog import AcceleratorType, Runtime, base_runtime, node_cidr_prefix, runtimes
from tpuctl.cloud.classification import NodesClosed, RangeTaken
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.resource import Report
from tpuctl.errors import Diagnostic, TpuctlError
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.status.status import NodeStatus
from tpuctl.model.text.names import STACK_LABEL
from tpuctl.resources.base import STACK_UPDATE, Query, time_of
from tpuctl.resources.network.cidr import free_range, ranges_in_use
from tpuctl.resources.network.network import Network, network_differences
from tpuctl.resources.tpu.node_lifecycle import CREATE_SECONDS, DEAD_STATES, TpuApiNode, capacity_of

TPU_VM = "V2_ALPHA1"  # the API version of TPU VMs, which API v1 lists too
MAX_RANGE_ATTEMPTS = 8  # each fails only if another program chose the same range at the same time


class RemoteNode(TpuApiNode):
    """Created with the stack's label in a free address range; recreated after preemption."""

    kind = "tpu"
    label = "the TPU node"
    display_name = "node"
    client_name = "tpu_v1"
    noun = "TPU node"
    permissions = """
        read tpu.viewer tpu.nodes.get tpu.nodes.list
        create tpu.admin tpu.nodes.create tpu.nodes.delete tpu.operations.get
        create compute.viewer compute.addresses.list compute.disks.list compute.instances.list
        create iam.serviceAccountAdmin iam.serviceAccounts.list
        create compute.viewer compute.routers.list compute.subnetworks.list
        update:state tpu.admin tpu.nodes.start tpu.operations.get
    """
    optional: ClassVar = {"update": STACK_UPDATE}

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.is_node

    def __init__(self, network: Network) -> None:
        super().__init__(network.stack, network.cloud)
        self.network = network

    @classmethod
    def from_inventory(
        cls, item: InventoryItem, stack: Stack, cloud: Cloud, *, delete_bucket: bool
    ) -> Self:
        return cls(Network(stack, cloud))

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        client = query.cloud.client("tpu_v1")
        nodes = client.list_nodes(query.all_locations, **query.options)
        for node in query.items(nodes, "nodes"):
            if not node.api_version.name.startswith("V2"):
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
                    node=status,
                )

    @property
    def name(self) -> str:
        return self.stack.names.node

    @property
    def after(self) -> frozenset[str]:
        """After its controller, whose watchdog deletes it: the node has no machine of its own."""
        return frozenset({self.network.address, f"controller/{self.stack.names.controller}"})

    def diff(self, observed: Any | None) -> Change:
        type_name = self.stack.accelerator.name
        if observed is None:
            return self.create(f"no TPU node in {self.stack.zone}: creating {type_name}")
        self.check(observed)
        if observed.api_version.name == TPU_VM:
            raise self.difference_error("kind", "TPU VM", "node")
        state = observed.state.name
        if state in DEAD_STATES:
            return self.create(f"recreating the node, which is {state}")
        for field, actual, desired in self._fixed_fields(observed):
            if actual != desired:
                raise self.difference_error(field, actual, desired)
        return self.change_to_ready(state) or self.nothing(f"READY with {type_name}")

    def _fixed_fields(self, observed: Any) -> list[tuple[str, str, str]]:
        """Fields that cannot be updated, as (field, actual, desired)."""
        fields = [
            ("type", observed.accelerator_type, self.stack.accelerator.name),
            ("version", observed.tensorflow_version, self.stack.runtime.version),
        ]
        node_range = self.stack.file.network.node_range
        if node_range not in ("auto", "service-networking") and observed.cidr_block:
            actual = IPv4Network(observed.cidr_block, strict=False)
            if not actual.subnet_of(IPv4Network(node_range)):
                fields.append(("range", observed.cidr_block, node_range))
        fields += network_differences(self.stack, observed.network, "")
        return fields

    def removal(self, observed: Any | None) -> Change:
        if observed is not None and observed.api_version.name == TPU_VM:
            return self.leave("it is a TPU VM, which is deleted as one")
        if observed is None or not self.is_ours(observed):
            return super().removal(observed)
        return self.delete(f"{observed.accelerator_type} is charged while it exists")

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            await self.remove(report)
        elif change.action is Action.CREATE:
            await self._delete_in_states(report, DEAD_STATES)
            await self._create(report)
        elif "state" in change.fields:
            await self.start(report)
        else:
            await self.wait_until_ready(report)

    async def _delete_in_states(self, report: Report, states: tuple[str, ...]) -> None:
        """Delete the stack's node if it is in one of these states."""
        node = await self.observe()
        if node is not None and self.is_ours(node) and node.state.name in states:
            await self.remove(report)

    async def _create(self, report: Report) -> None:
        """Create the node, retrying with another range if the chosen one was taken concurrently."""
        network = await self.network.usable_name()
        refused: set[str] = set()
        for remaining in range(MAX_RANGE_ATTEMPTS - 1, -1, -1):
            address_field = await self._range(network, refused)
            try:
                await self._ask({**self._desired(network), **address_field}, report)
            except RangeTaken:
                if not remaining or self.stack.file.network.node_range != "auto":
                    raise
                refused.add(address_field["cidr_block"])
                await self._delete_in_states(report, ("UNKNOWN", *DEAD_STATES))
            except NodesClosed as error:
                raise _with_vm_hint(error, self.stack) from error
            else:
                break
        await self.wait_until_ready(report)

    async def _range(self, network: str, refused: set[str]) -> dict[str, Any]:
        node_range = self.stack.file.network.node_range
        if node_range == "service-networking":
            return {"use_service_networking": True}
        if node_range == "auto":
            used = await ranges_in_use(self.stack, self.cloud, network)
            node_range = free_range(used | refused, node_cidr_prefix(self.stack.accelerator))
        return {"cidr_block": node_range}

    async def _ask(self, node: dict[str, Any], report: Report) -> None:
        """Create the node, or adopt it if another program created it."""
        request = {"parent": self.parent, "node_id": self.name, "node": node}
        operation: Any = None

        async def create() -> None:
            nonlocal operation
            operation = await self.call(self.client_name, "create_node", request)

        report("requesting the node", None)
        # The range may be in use by this very node, created by another program or by our own call
        # whose response was lost.
        existing = await self.create_or_adopt(create, self.observe, report, check=self.check)
        if existing is None:
            report("CREATING", None)
            await self.wait_for(operation, CREATE_SECONDS)

    def _desired(self, network: str) -> dict[str, Any]:
        capacity = self.stack.file.tpu.capacity
        return {
            "accelerator_type": self.stack.accelerator.name,
            "tensorflow_version": self.stack.runtime.version,
            "description": self.stack.names.ownership,
            "network": self.stack.network_path(network),
            "scheduling_config": {
                "preemptible": capacity == "preemptible",
                "reserved": capacity == "reserved",
            },
            "labels": self.stack.new_labels,
        }


def closed_api_warning(stack: Stack) -> Diagnostic:
    """The warning before a TPU node is requested.

    Since April 2025 only projects on Google's allowlist may create them, as the error message says
    (terraform-provider-google issue 22526).
    """
    return Diagnostic(
        "TPU nodes unavailable to most projects",
        f"Google may reject {stack.names.node}: since 2025 only projects on its allowlist can "
        "create "
        "TPU nodes",
        f"If it does, use a TPU VM instead:\n{_vm_section(stack)}",
    )


def vm_runtime(accelerator: AcceleratorType, tensorflow: str | None) -> Runtime | None:
    """The TPU VM runtime with that TensorFlow, else the closest newer one, else the newest.

    The base runtime if `tensorflow` is None, as for PyTorch.
    """
    if tensorflow is None:
        return base_runtime(accelerator)
    fitting = [candidate for candidate in runtimes() if candidate.fits(accelerator)]
    with_tensorflow = [candidate for candidate in fitting if candidate.tensorflow is not None]
    newer = [
        candidate
        for candidate in with_tensorflow
        if _numbers(candidate.tensorflow) >= _numbers(tensorflow)
    ]
    if newer:
        return min(newer, key=lambda candidate: _numbers(candidate.tensorflow))
    return max(with_tensorflow, key=lambda candidate: _numbers(candidate.tensorflow), default=None)


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (version or "0").split("."))


def _vm_section(stack: Stack) -> str:
    runtime = vm_runtime(stack.accelerator, stack.runtime.tensorflow)
    return f"    tpu: {{kind: vm, runtime: {runtime.version if runtime else 'auto'}}}"


def _with_vm_hint(error: NodesClosed, stack: Stack) -> TpuctlError:
    """The same error, with the exact change in its hint."""
    first = error.diagnostics[0]
    named = NodesClosed(
        first.summary,
        first.detail,
        hint=f"Use a TPU VM instead:\n{_vm_section(stack)}\nthen run\n    tpuctl up",
    )
    named.scope = error.scope
    return named


def _status(node: Any) -> NodeStatus:
    """Convert a node of API v1."""
    parts = node.name.split("/")
    endpoints = list(node.network_endpoints)
    return NodeStatus(
        name=parts[-1],
        id="",  # not in API v1
        zone=parts[3],
        state=node.state.name,
        health=node.health.name,
        accelerator_type=node.accelerator_type,
        runtime=node.tensorflow_version,
        created=time_of(node.create_time),
        addresses=tuple(endpoint.ip_address for endpoint in endpoints),
        ssh_ports=(),
        endpoints=tuple(f"{endpoint.ip_address}:{endpoint.port}" for endpoint in endpoints),
        service_account=node.service_account,
    )
