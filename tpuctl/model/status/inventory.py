"""The inventory of stacks' resources in a project, and which of them look orphaned."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import ClassVar, Literal, get_args

from tpuctl.catalog import Api, Capacity, region_of
from tpuctl.model.cost.cost import CostLine
from tpuctl.model.status.status import NodeStatus
from tpuctl.model.text.names import STACK_NAME, ownership

Group = Literal["project", "network", "bucket", "account", "TPU"]
GROUPS: tuple[Group, ...] = get_args(Group)
DEAD_STATES = ("PREEMPTED", "TERMINATED", "FAILED", "SUSPENDED")  # TPU states
STOPPED_STATES = (
    "STOPPED",
    "SUSPENDED",
    "TERMINATED",
)  # controller states: can be started again
STARTING_STATES = (
    "CREATING",
    "PENDING",
    "PROVISIONING",
    "STAGING",
)  # `up` creates TPU and controller at the same time
DELETING = "DELETING"
_OWNERSHIP = re.compile(re.escape(ownership("")) + f"({STACK_NAME})")


class ResourceKind:
    """Properties of a kind of resource; base of the classes in `tpuctl.resources`."""

    kind: ClassVar[str]  # as in addresses: `node` in `node/bert-tpu`
    group: ClassVar[Group]  # its group in progress output
    label: ClassVar[str]  # its description in lists of permissions
    display_name: ClassVar[str] = ""  # its name in `status`, if different from the kind
    is_tpu: ClassVar[bool] = False  # TPUs and requests for them
    api: ClassVar[Api | None] = None  # who sells it: of TPUs, and of what belongs to them
    is_machine: ClassVar[bool] = False  # runs, or will run
    has_ssh: ClassVar[bool] = False  # has machines that support SSH
    is_zonal: ClassVar[bool] = False  # created in the TPU's zone, and deleted when the zone changes
    is_regional: ClassVar[bool] = False  # created in the TPU's region, and kept when that changes
    is_billable: bool = False  # costs money while it exists, itself or its machines
    # States in which it is not charged: before it is ready, and after its end.
    uncharged_before_states: ClassVar[tuple[str, ...]] = ()
    uncharged_after_states: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def cost(cls, item: InventoryItem) -> CostLine | None:
        """Its cost while it is charged; None if it costs nothing itself."""
        return None


@dataclass(frozen=True)
class InventoryItem:
    """A resource with a stack's label, or with its description if it has no labels."""

    kind_class: type[ResourceKind]
    name: str
    stack: str
    zone: str = ""  # or region; empty if global
    state: str = ""
    detail: str = ""  # the type of a node, machine or disk, the location of a bucket
    created: datetime | None = None
    capacity: Capacity = "on-demand"  # nodes, requests and machines
    size_gb: int = 0  # disks
    count: int = 1  # number of nodes of a request
    request: str = ""  # the request that created a node
    external_addresses: int = 0  # of nodes and machines
    node: NodeStatus | None = field(default=None, repr=False)  # more about a node

    @property
    def kind(self) -> str:
        """The kind, as in addresses."""
        return self.kind_class.kind

    @property
    def tpu_capacity(self) -> Capacity | None:
        """The capacity of a TPU or a request for one; None for others."""
        return self.capacity if self.kind_class.is_tpu else None

    @property
    def is_billable(self) -> bool:
        """Whether it costs money itself: for a request only its nodes do."""
        return self.cost is not None

    @property
    def is_spot(self) -> bool:
        """Whether it may be preempted at any time, at a lower price."""
        return self.capacity in ("spot", "preemptible")

    @property
    def cost(self) -> CostLine | None:
        """Its cost while it is charged; None if it costs nothing itself."""
        return self.kind_class.cost(self)

    @property
    def address(self) -> str:
        return f"{self.kind}/{self.zone}/{self.name}" if self.zone else f"{self.kind}/{self.name}"

    @property
    def local_address(self) -> str:
        """Its address among the resources of its zone."""
        return f"{self.kind}/{self.name}"

    def serves(self, zone: str) -> bool:
        """Whether it is usable in a zone: in the zone, its region, or global."""
        return self.zone in ("", zone, region_of(zone))


@dataclass(frozen=True)
class OrphanedItem:
    """An item that seems unused, with the reason."""

    item: InventoryItem
    reason: str


def stack_of_description(text: str) -> str | None:
    """The owning stack, from a resource's description."""
    match = _OWNERSHIP.fullmatch(text)
    return match[1] if match else None


def with_requests(
    items: Iterable[InventoryItem], capacity: Capacity | None = None
) -> list[InventoryItem]:
    """Set the capacity of nodes that were created by a request, which do not report it.

    `capacity` is that of the stack file, if any; only the stack file shows flex-start.
    """
    all_items = list(items)
    requests = {
        (item.zone, item.name): item.capacity for item in all_items if item.kind == "queued"
    }

    def with_capacity(item: InventoryItem) -> InventoryItem:
        if item.kind != "node" or (item.zone, item.request) not in requests:
            return item
        request_capacity = requests[item.zone, item.request]
        if capacity == "flex-start" and request_capacity == "on-demand":
            request_capacity = capacity
        return replace(item, capacity=request_capacity)

    return [with_capacity(item) for item in all_items]


def find_orphaned(
    items: Iterable[InventoryItem], *, lacks_machines: bool = False
) -> list[OrphanedItem]:
    """Items of all stacks that look orphaned: half of a pair, other zones, remains of stacks.

    If some machines could not be listed, only those that are orphaned without them: dead TPUs.
    Never buckets, which are kept on purpose, with the output of jobs.
    """
    orphaned = []
    in_order = sorted(items, key=lambda item: (item.stack, item.kind, item.zone, item.name))
    for _, group in groupby(in_order, key=lambda item: item.stack):
        stack_items = list(group)
        orphaned += [
            OrphanedItem(item, reason)
            for item in stack_items
            if (not lacks_machines or item.state in DEAD_STATES)
            and (reason := _orphaned_reason(item, stack_items))
        ]
    return orphaned


def _orphaned_reason(item: InventoryItem, stack_items: Sequence[InventoryItem]) -> str:
    if item.state == DELETING:
        return ""
    if item.kind_class.is_tpu and item.state in DEAD_STATES:
        return f"{item.state}: no longer running" + (
            ", and uses quota" if item.kind == "queued" else ""
        )
    running = [
        machine for machine in stack_items if machine.kind_class.is_machine and _is_running(machine)
    ]
    same_zone = {
        other.kind_class for other in stack_items if item.serves(other.zone) and _is_usable(other)
    }
    kinds = {resource.kind for resource in same_zone}
    if item.kind == "queued" and item.state == "ACTIVE" and not _has_nodes(item, stack_items):
        return "its nodes no longer exist, and it uses quota"
    if item.kind == "tpu" and "controller" not in kinds and item.state not in STARTING_STATES:
        return "its controller no longer exists"
    if _is_elsewhere(item, stack_items):
        return ""
    has_tpu = any(resource.is_tpu for resource in same_zone)
    if item.kind == "controller" and not has_tpu and item.state not in STARTING_STATES:
        return "no TPU in its zone"
    if item.zone and not item.kind_class.is_machine and not same_zone:
        return "the stack has no machine there"
    if item.kind_class.is_machine:
        first = _first_machine(running)
        if first is None or first.zone in ("", item.zone):
            return ""
        is_waiting = first.kind == "queued" and first.state != "ACTIVE"
        return f"the stack {'waits for a TPU' if is_waiting else 'runs'} in {first.zone}"
    if item.kind != "bucket" and not running:
        return "the stack is not running"
    return ""


def _is_elsewhere(item: InventoryItem, stack_items: Sequence[InventoryItem]) -> bool:
    """Whether it is the stack's only controller, and works with TPU VMs in another zone: only that
    of a TPU node must be beside it."""
    controllers = [other for other in stack_items if other.kind == item.kind and _is_usable(other)]
    return (
        item.kind == "controller"
        and controllers == [item]
        and any(
            other.kind_class.is_tpu and other.kind != "tpu" and _is_usable(other)
            for other in stack_items
        )
    )


def _is_usable(item: InventoryItem) -> bool:
    """Whether it is a machine in use, or that can be used again, such as a stopped one."""
    if item.kind_class.is_tpu:
        return item.state not in (*DEAD_STATES, DELETING)
    return item.kind == "controller" and item.state != DELETING


def _is_running(item: InventoryItem) -> bool:
    return _is_usable(item) and (item.kind_class.is_tpu or item.state not in STOPPED_STATES)


def _has_nodes(request: InventoryItem, stack_items: Sequence[InventoryItem]) -> bool:
    return any(item.kind == "node" and item.request == request.name for item in stack_items)


def _first_machine(running: Sequence[InventoryItem]) -> InventoryItem | None:
    """The stack's oldest READY node, else its oldest machine."""

    def age(item: InventoryItem) -> tuple[bool, float, str]:
        created = item.created.timestamp() if item.created is not None else 0.0
        return (item.state not in ("READY", "ACTIVE"), created, item.zone)

    return min(running, key=age, default=None)
