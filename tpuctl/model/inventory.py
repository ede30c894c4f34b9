"""What was found in a project that some stack made, and what of it looks left behind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import ClassVar, Literal, get_args

from tpuctl.catalog import Capacity, region_of
from tpuctl.model.cost import CostLine
from tpuctl.model.names import STACK_NAME, ownership
from tpuctl.model.status import NodeStatus

__all__ = [
    "DEAD_STATES",
    "GROUPS",
    "Group",
    "InventoryItem",
    "OrphanedItem",
    "ResourceKind",
    "find_orphaned",
    "stack_of_description",
    "with_requests",
]

Group = Literal["project", "network", "bucket", "account", "TPU"]
GROUPS: tuple[Group, ...] = get_args(Group)
DEAD_STATES = ("PREEMPTED", "TERMINATED", "FAILED", "SUSPENDED")  # of TPUs
STOPPED_STATES = (
    "STOPPED",
    "SUSPENDED",
    "TERMINATED",
)  # of controllers, which can be started again
STARTING_STATES = (
    "CREATING",
    "PENDING",
    "PROVISIONING",
    "STAGING",
)  # `up` makes both of a pair at once
DELETING = "DELETING"
_OWNERSHIP = re.compile(re.escape(ownership("")) + f"({STACK_NAME})")


class ResourceKind:
    """What all things of one kind have in common: each class in `tpuctl.resources` is of one."""

    kind: ClassVar[str]  # as in addresses: `node` in `node/bert-tpu`
    group: ClassVar[Group]  # what it is about, for whoever watches
    label: ClassVar[str]  # what it is, for whoever may allow it
    display_name: ClassVar[str] = ""  # what `status` calls it, where that is not the kind
    is_tpu: ClassVar[bool] = False  # chips, or a request for them
    is_machine: ClassVar[bool] = False  # something that runs, or is to
    has_ssh: ClassVar[bool] = False  # a machine, or what brings some, that one can log in to
    is_zonal: ClassVar[bool] = False  # made in the TPU's zone, and given up with it
    is_billable: bool = False  # costs money by merely existing, itself or what it brings
    # States in which it is not charged: on the way to work, and after its end.
    uncharged_before_states: ClassVar[tuple[str, ...]] = ()
    uncharged_after_states: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def cost(cls, item: InventoryItem) -> CostLine | None:
        """What it costs while it is charged; None for what costs nothing itself."""
        return None


@dataclass(frozen=True)
class InventoryItem:
    """One thing that carries a stack's label, or its name where nothing can carry labels."""

    kind_class: type[ResourceKind]
    name: str
    stack: str
    zone: str = ""  # or the region; empty for what is global
    state: str = ""
    detail: str = ""  # the type of a node, machine or disk, the location of a bucket
    created: datetime | None = None
    capacity: Capacity = "on-demand"  # of nodes, requests and machines
    size_gb: int = 0  # of a disk
    count: int = 1  # how many nodes a request asks for
    request: str = ""  # the request that a node came from
    external_addresses: int = 0  # of a node's workers, or a machine's
    node: NodeStatus | None = field(default=None, repr=False)  # what else is known of a node

    @property
    def kind(self) -> str:
        """As in addresses."""
        return self.kind_class.kind

    @property
    def is_billable(self) -> bool:
        """Whether it costs money itself: of a request only its nodes do."""
        return self.cost is not None

    @property
    def is_spot(self) -> bool:
        """Whether it may be taken away at any time, at a lower price."""
        return self.capacity in ("spot", "preemptible")

    @property
    def cost(self) -> CostLine | None:
        """What it costs while it is charged; None for what costs nothing itself."""
        return self.kind_class.cost(self)

    @property
    def address(self) -> str:
        return f"{self.kind}/{self.zone}/{self.name}" if self.zone else f"{self.kind}/{self.name}"

    def serves(self, zone: str) -> bool:
        """Whether it is where things of that zone can use it: there, in its region, or global."""
        return self.zone in ("", zone, region_of(zone))


@dataclass(frozen=True)
class OrphanedItem:
    """A thing that nobody seems to use any more, and why it seems so."""

    item: InventoryItem
    why: str


def stack_of_description(text: str) -> str | None:
    """The stack that a description names as the owner."""
    match = _OWNERSHIP.fullmatch(text)
    return match[1] if match else None


def with_requests(
    items: Iterable[InventoryItem], capacity: Capacity | None = None
) -> list[InventoryItem]:
    """With the capacity of their request on nodes that came from one: they do not tell it.

    `capacity` is what the stack file asks for, where there is one; it alone knows of flex-start.
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


def find_orphaned(items: Iterable[InventoryItem]) -> list[OrphanedItem]:
    """What of all stacks seems forgotten: halves of pairs, second zones, rests of stacks.

    A bucket is never among it: it is kept on purpose, with the jobs' output in it.
    """
    orphaned = []
    in_order = sorted(items, key=lambda item: (item.stack, item.kind, item.zone, item.name))
    for _, group in groupby(in_order, key=lambda item: item.stack):
        stack_items = list(group)
        orphaned += [
            OrphanedItem(item, reason)
            for item in stack_items
            if (reason := _orphaned_reason(item, stack_items))
        ]
    return orphaned


def _orphaned_reason(item: InventoryItem, stack_items: Sequence[InventoryItem]) -> str:
    if item.state == DELETING:
        return ""
    if item.kind_class.is_tpu and item.state in DEAD_STATES:
        return f"{item.state}: it does nothing any more" + (
            ", and holds quota" if item.kind == "queued" else ""
        )
    running = [each for each in stack_items if each.kind_class.is_machine and _is_running(each)]
    same_zone = {
        each.kind_class for each in stack_items if each.zone == item.zone and _is_usable(each)
    }
    kinds = {each.kind for each in same_zone}
    if item.kind == "queued" and item.state == "ACTIVE" and not _has_nodes(item, stack_items):
        return "its nodes are gone, and it holds quota"
    if item.kind == "tpu" and "controller" not in kinds and item.state not in STARTING_STATES:
        return "its controller is gone"
    has_tpu = any(each.is_tpu for each in same_zone)
    if item.kind == "controller" and not has_tpu and item.state not in STARTING_STATES:
        return "there is no TPU beside it"
    if item.zone and not item.kind_class.is_machine and not same_zone:
        return "no machine of the stack is there"
    if item.kind_class.is_machine:
        first = _first_zone(running)
        return f"the stack works in {first}" if first not in ("", item.zone) else ""
    if item.kind != "bucket" and not running:
        return "nothing of the stack runs"
    return ""


def _is_usable(item: InventoryItem) -> bool:
    """Whether it is a machine that is used, or could be again: a stopped one is there."""
    if item.kind_class.is_tpu:
        return item.state not in (*DEAD_STATES, DELETING)
    return item.kind == "controller" and item.state != DELETING


def _is_running(item: InventoryItem) -> bool:
    return _is_usable(item) and (item.kind_class.is_tpu or item.state not in STOPPED_STATES)


def _has_nodes(request: InventoryItem, stack_items: Sequence[InventoryItem]) -> bool:
    return any(each.kind == "node" and each.request == request.name for each in stack_items)


def _first_zone(running: Sequence[InventoryItem]) -> str:
    """Where the stack's oldest READY node is, else its oldest machine."""

    def age(item: InventoryItem) -> tuple[bool, float, str]:
        created = item.created.timestamp() if item.created is not None else 0.0
        return (item.state not in ("READY", "ACTIVE"), created, item.zone)

    return min(running, key=age).zone if running else ""
