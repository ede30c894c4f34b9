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
    "GONE_BAD",
    "GROUPS",
    "Found",
    "Group",
    "Kind",
    "Leftover",
    "left_behind",
    "stack_of_description",
    "with_requests",
]

Group = Literal["project", "network", "bucket", "account", "TPU"]
GROUPS: tuple[Group, ...] = get_args(Group)
GONE_BAD = ("PREEMPTED", "TERMINATED", "FAILED", "SUSPENDED")  # of TPUs
STOPPED = ("STOPPED", "SUSPENDED", "TERMINATED")  # of controllers, which can be started again
BEGINNING = ("CREATING", "PENDING", "PROVISIONING", "STAGING")  # `up` makes both of a pair at once
GOING = "DELETING"
_OWNERSHIP = re.compile(re.escape(ownership("")) + f"({STACK_NAME})")


class Kind:
    """What all things of one kind have in common: each class in `tpuctl.resources` is of one."""

    kind: ClassVar[str]  # as in addresses: `node` in `node/bert-tpu`
    group: ClassVar[Group]  # what it is about, for whoever watches
    label: ClassVar[str]  # what it is, for whoever may allow it
    shown_as: ClassVar[str] = ""  # what `status` calls it, where that is not the kind
    is_tpu: ClassVar[bool] = False  # chips, or a request for them
    is_machine: ClassVar[bool] = False  # something that runs, or is to
    has_ssh: ClassVar[bool] = False  # a machine, or what brings some, that one can log in to
    is_zonal: ClassVar[bool] = False  # made in the TPU's zone, and given up with it
    is_billable: bool = False  # costs money by merely existing, itself or what it brings
    # States in which it is not charged: on the way to work, and after its end.
    charged_later: ClassVar[tuple[str, ...]] = ()
    charged_no_more: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def cost(cls, found: Found) -> CostLine | None:
        """What it costs while it is charged; None for what costs nothing itself."""
        return None


@dataclass(frozen=True)
class Found:
    """One thing that carries a stack's label, or its name where nothing can carry labels."""

    of: type[Kind]
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
        return self.of.kind

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
        return self.of.cost(self)

    @property
    def address(self) -> str:
        return f"{self.kind}/{self.zone}/{self.name}" if self.zone else f"{self.kind}/{self.name}"

    def serves(self, zone: str) -> bool:
        """Whether it is where things of that zone can use it: there, in its region, or global."""
        return self.zone in ("", zone, region_of(zone))


@dataclass(frozen=True)
class Leftover:
    """A thing that nobody seems to use any more, and why it seems so."""

    found: Found
    why: str


def stack_of_description(text: str) -> str | None:
    """The stack that a description names as the owner."""
    match = _OWNERSHIP.fullmatch(text)
    return match[1] if match else None


def with_requests(found: Iterable[Found], capacity: Capacity | None = None) -> list[Found]:
    """With the capacity of their request on nodes that came from one: they do not tell it.

    `capacity` is what the stack file asks for, where there is one; it alone knows of flex-start.
    """
    everything = list(found)
    requests = {(one.zone, one.name): one.capacity for one in everything if one.kind == "queued"}

    def mended(one: Found) -> Found:
        if one.kind != "node" or (one.zone, one.request) not in requests:
            return one
        asked = requests[one.zone, one.request]
        if capacity == "flex-start" and asked == "on-demand":
            asked = capacity
        return replace(one, capacity=asked)

    return [mended(one) for one in everything]


def left_behind(everything: Iterable[Found]) -> list[Leftover]:
    """What of all stacks seems forgotten: halves of pairs, second zones, rests of stacks.

    A bucket is never among it: it is kept on purpose, with the jobs' output in it.
    """
    found = []
    in_order = sorted(everything, key=lambda one: (one.stack, one.kind, one.zone, one.name))
    for _, group in groupby(in_order, key=lambda one: one.stack):
        mine = list(group)
        found += [Leftover(one, why) for one in mine if (why := _why(one, mine))]
    return found


def _why(one: Found, mine: Sequence[Found]) -> str:
    if one.state == GOING:
        return ""
    if one.of.is_tpu and one.state in GONE_BAD:
        return f"{one.state}: it does nothing any more" + (
            ", and holds quota" if one.kind == "queued" else ""
        )
    working = [each for each in mine if each.of.is_machine and _works(each)]
    beside = {each.of for each in mine if each.zone == one.zone and _is_there(each)}
    kinds = {each.kind for each in beside}
    if one.kind == "queued" and one.state == "ACTIVE" and not _has_nodes(one, mine):
        return "its nodes are gone, and it holds quota"
    if one.kind == "tpu" and "controller" not in kinds and one.state not in BEGINNING:
        return "its controller is gone"
    has_tpu = any(each.is_tpu for each in beside)
    if one.kind == "controller" and not has_tpu and one.state not in BEGINNING:
        return "there is no TPU beside it"
    if one.zone and not one.of.is_machine and not beside:
        return "no machine of the stack is there"
    if one.of.is_machine:
        first = _first_zone(working)
        return f"the stack works in {first}" if first not in ("", one.zone) else ""
    if one.kind != "bucket" and not working:
        return "nothing of the stack runs"
    return ""


def _is_there(one: Found) -> bool:
    """Whether it is a machine that is used, or could be again: a stopped one is there."""
    if one.of.is_tpu:
        return one.state not in (*GONE_BAD, GOING)
    return one.kind == "controller" and one.state != GOING


def _works(one: Found) -> bool:
    return _is_there(one) and (one.of.is_tpu or one.state not in STOPPED)


def _has_nodes(request: Found, mine: Sequence[Found]) -> bool:
    return any(each.kind == "node" and each.request == request.name for each in mine)


def _first_zone(working: Sequence[Found]) -> str:
    """Where the stack's oldest READY node is, else its oldest machine."""

    def age(one: Found) -> tuple[bool, float, str]:
        created = one.created.timestamp() if one.created is not None else 0.0
        return (one.state not in ("READY", "ACTIVE"), created, one.zone)

    return min(working, key=age).zone if working else ""
