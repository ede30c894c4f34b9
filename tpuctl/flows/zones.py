"""Choose the zone for a stack's node, and the error to raise if all zones fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tpuctl.catalog import region_of
from tpuctl.errors import Conflict, NoCapacity, QuotaExceeded, Scope, TpuctlError
from tpuctl.model.inventory import DEAD_STATES, InventoryItem
from tpuctl.model.known_errors import table
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack import Stack

__all__ = [
    "Refusal",
    "has_active",
    "home_zone",
    "next_zone",
    "no_zone_error",
    "widest_error",
    "zones_to_try",
]

ACTIVE_STATES = ("READY", "ACTIVE")


@dataclass(frozen=True)
class Refusal:
    """The error from one zone."""

    zone: str
    error: TpuctlError

    def __str__(self) -> str:
        diagnostic = self.error.diagnostics[0]
        return f"{self.zone}: {diagnostic.summary}"


def home_zone(stack: Stack, resources: Sequence[InventoryItem]) -> str:
    """The zone where the stack is up, otherwise where its data is, otherwise its first zone.

    Raises Conflict if it has a node or data disk in a zone that the stack file does not list:
    those are charged, and must not be deleted without a request.
    """
    tpus = [resource for resource in resources if resource.kind_class.is_tpu]
    disks = [resource for resource in resources if _holds_data(resource, stack)]
    _refuse_outside([resource for resource in tpus if _is_in_use(resource)], "Node", stack)
    working = [zone for zone in stack.zones if _is_active(zone, tpus)]
    if working:
        return working[0]
    _refuse_outside(disks, "Disk", stack)
    with_data = [zone for zone in stack.zones if any(resource.zone == zone for resource in disks)]
    if with_data:  # disks are zonal
        return with_data[0]

    def rank(zone: str) -> tuple[bool, bool, bool]:
        in_zone = [resource for resource in tpus if resource.zone == zone]
        return (
            not any(_is_in_use(resource) for resource in in_zone),
            all(resource.state in DEAD_STATES for resource in in_zone),
            not in_zone,
        )

    return min(stack.zones, key=rank)  # the first in order among equals


def _refuse_outside(resources: Sequence[InventoryItem], noun: str, stack: Stack) -> None:
    outside = [resource for resource in resources if resource.zone not in stack.zones]
    if outside:
        raise Conflict(
            f"{noun} in another zone",
            f"stack {stack.name} has {outside[0].address}, but the stack file lists only "
            f"{', '.join(stack.zones)}",
            hint="Add that zone to tpu.zones, or take the stack down first:\n    tpuctl down",
        )


def has_active(resources: Sequence[InventoryItem]) -> bool:
    """Whether the stack has a TPU that is ready."""
    return any(
        resource.kind_class.is_tpu and resource.state in ACTIVE_STATES for resource in resources
    )


def _is_active(zone: str, tpus: Sequence[InventoryItem]) -> bool:
    return any(resource.zone == zone and resource.state in ACTIVE_STATES for resource in tpus)


def _is_in_use(resource: InventoryItem) -> bool:
    """Whether a node may hold data: a stopped one keeps its disk."""
    if resource.kind == "queued":
        return resource.state in ACTIVE_STATES
    return resource.state not in (*DEAD_STATES, "CREATING", "DELETING")


def _holds_data(resource: InventoryItem, stack: Stack) -> bool:
    """Whether it is a data disk; a controller's boot disk is deleted with its machine."""
    return resource.kind == "disk" and resource.name.startswith(
        stack.names.disk(0).removesuffix("0")
    )


def zones_to_try(stack: Stack, plan: Plan) -> tuple[str, ...]:
    """The zones in which this plan may be applied: only the stack's zone if it has data disks.

    In another zone, new disks would be created and these deleted with their data.
    """
    names = [stack.names.disk(index) for index in range(len(stack.file.tpu.data_disks))]
    existing_disks = [
        change
        for change in plan
        if change.address in {f"disk/{name}" for name in names} and change.action is Action.NOTHING
    ]
    return (stack.zone,) if existing_disks else stack.zones


def next_zone(zones: Sequence[str], refusals: Sequence[Refusal]) -> str | None:
    """The first zone not tried yet whose region has not failed as a whole."""
    tried = {refusal.zone for refusal in refusals}
    closed = {
        region_of(refusal.zone) for refusal in refusals if refusal.error.scope is Scope.REGION
    }
    left = [zone for zone in zones if zone not in tried and region_of(zone) not in closed]
    return left[0] if left else None


def widest_error(errors: Mapping[str, TpuctlError]) -> TpuctlError:
    """Of several failures the one with the widest scope, which other zones would not fix."""
    order = [Scope.FATAL, Scope.PROJECT, Scope.REGION, Scope.ZONE]
    return min(errors.values(), key=lambda error: order.index(error.scope))


def no_zone_error(refusals: Sequence[Refusal], stack: Stack, tried: Sequence[str]) -> TpuctlError:
    """The error to raise when no zone is left: lists all failures; the exit code is that of the
    one most likely to pass, such as missing capacity.

    `tried` are the zones of the stack file that could be tried.
    """
    zones = stack.zones
    if len(zones) == 1:
        return refusals[0].error
    if len(tried) == 1:
        error = refusals[0].error
        diagnostic = error.diagnostics[0]
        pinned = type(error)(
            diagnostic.summary,
            f"{diagnostic.detail}\n"
            f"No other zone was tried: the stack's data disks are in {tried[0]}",
            hint="Try again later. To delete the disks and start over in another zone:\n"
            "    tpuctl down",
        )
        pinned.scope = error.scope
        return pinned
    kinds = (NoCapacity, QuotaExceeded, type(refusals[-1].error))
    kind = next(
        kind for kind in kinds if any(isinstance(refusal.error, kind) for refusal in refusals)
    )
    skipped = [zone for zone in zones if zone not in {refusal.zone for refusal in refusals}]
    lines = [f"{refusal}: {_message(refusal.error)}" for refusal in refusals]
    lines += [f"{zone}: not tried, because its region failed" for zone in skipped]
    error = kind(
        "No zone available",
        "\n".join(["the node could not be created in any zone", *lines]),
        hint="\n".join([*_advice(refusals), _general_advice(stack)]),
    )
    error.scope = Scope.PROJECT
    return error


def _advice(refusals: Sequence[Refusal]) -> Iterator[str]:
    """Each distinct hint of the errors, with the zones that it applies to.

    Zones without capacity are covered by the general advice.
    """
    zones: dict[str, list[str]] = {}
    for refusal in refusals:
        diagnostic = refusal.error.diagnostics[0]
        if diagnostic.hint and diagnostic.summary != table().by_name("no-capacity").summary:
            zones.setdefault(diagnostic.hint, []).append(refusal.zone)
    for hint, zone_names in zones.items():
        yield f"For {', '.join(zone_names)}:\n{hint}"


def _general_advice(stack: Stack) -> str:
    waiting = ":\n    tpu: {queue: true}" if stack.queue is None else " longer with valid_until."
    return (
        f"Try again later, add zones to tpu.zones, or wait in a queue{waiting}\n"
        f"List the zones that offer the type:\n    tpuctl zones {stack.file.tpu.type}"
    )


def _message(error: TpuctlError) -> str:
    """Google's message without the explanation, shown once per zone."""
    return error.diagnostics[0].detail.partition("\n")[0]
