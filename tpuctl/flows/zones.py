"""Which zone a stack's node is tried in, and what is told when none would have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tpuctl.catalog import region_of
from tpuctl.errors import Conflict, NoCapacity, QuotaExceeded, Scope, TpuctlError
from tpuctl.model.inventory import GONE_BAD, TPU_KINDS, Found
from tpuctl.model.known_errors import table
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack import Stack

__all__ = ["Refusal", "exhausted", "home_zone", "next_zone", "zone_error", "zones_to_try"]

AT_WORK = ("READY", "ACTIVE")


@dataclass(frozen=True)
class Refusal:
    """What became of one zone."""

    zone: str
    error: TpuctlError

    def __str__(self) -> str:
        found = self.error.diagnostics[0]
        return f"{self.zone}: {found.summary}"


def home_zone(stack: Stack, found: Sequence[Found]) -> str:
    """Where the stack is at work already, else where its data is, else the first of its zones.

    Raises Conflict when it has a node or data in a zone that the stack file does not name: what
    is there is charged, and nobody asked for it to be deleted.
    """
    tpus = [one for one in found if one.kind in TPU_KINDS]
    disks = [one for one in found if _holds_data(one, stack)]
    _refuse_outside([one for one in tpus if _stays(one)], "Node", stack)
    working = [zone for zone in stack.zones if _is_at_work(zone, tpus)]
    if working:
        return working[0]
    _refuse_outside(disks, "Disk", stack)
    with_data = [zone for zone in stack.zones if any(one.zone == zone for one in disks)]
    if with_data:  # what is on a disk of the stack can be used in its zone alone
        return with_data[0]

    def rank(zone: str) -> tuple[bool, bool, bool]:
        there = [one for one in tpus if one.zone == zone]
        return (
            not any(_stays(one) for one in there),
            all(one.state in GONE_BAD for one in there),
            not there,
        )

    return min(stack.zones, key=rank)  # the first in order among equals


def _refuse_outside(found: Sequence[Found], what: str, stack: Stack) -> None:
    outside = [one for one in found if one.zone not in stack.zones]
    if outside:
        raise Conflict(
            f"{what} in another zone",
            f"stack {stack.name} has {outside[0].address}, the stack file names "
            f"{', '.join(stack.zones)}",
            hint="Add that zone to tpu.zones, or take the stack down first:\n    tpuctl down",
        )


def _is_at_work(zone: str, tpus: Sequence[Found]) -> bool:
    return any(one.zone == zone and one.state in AT_WORK for one in tpus)


def _stays(one: Found) -> bool:
    """Whether it is a node that somebody has used: a stopped one keeps what is on it."""
    if one.kind == "queued":
        return one.state in AT_WORK
    return one.state not in (*GONE_BAD, "CREATING", "DELETING")


def _holds_data(one: Found, stack: Stack) -> bool:
    """Whether it is a data disk: a controller's own goes with its machine."""
    return one.kind == "disk" and one.name.startswith(stack.names.disk(0).removesuffix("0"))


def zones_to_try(stack: Stack, plan: Plan) -> tuple[str, ...]:
    """Where this plan may be carried out: in the zone in use alone where it finds data disks.

    In another zone it would make new ones, and take these away with all that is on them.
    """
    names = [stack.names.disk(index) for index in range(len(stack.file.tpu.data_disks))]
    kept = [
        change
        for change in plan
        if change.address in {f"disk/{name}" for name in names} and change.action is Action.NOTHING
    ]
    return (stack.zone,) if kept else stack.zones


def next_zone(zones: Sequence[str], refusals: Sequence[Refusal]) -> str | None:
    """The first zone not tried yet whose region has not refused as a whole."""
    tried = {one.zone for one in refusals}
    closed = {region_of(one.zone) for one in refusals if one.error.scope is Scope.REGION}
    left = [zone for zone in zones if zone not in tried and region_of(zone) not in closed]
    return left[0] if left else None


def zone_error(errors: Mapping[str, TpuctlError]) -> TpuctlError:
    """Of several failures the one that reaches furthest: what no other zone would mend."""
    order = [Scope.FATAL, Scope.PROJECT, Scope.REGION, Scope.ZONE]
    return min(errors.values(), key=lambda error: order.index(error.scope))


def exhausted(refusals: Sequence[Refusal], stack: Stack, tried: Sequence[str]) -> TpuctlError:
    """What is raised when no zone is left: the whole story, with the exit code of its best hope.

    `tried` are the zones that could be tried, of those that the stack file names.
    """
    zones = stack.zones
    if len(zones) == 1:
        return refusals[0].error
    if len(tried) == 1:
        error = refusals[0].error
        one = error.diagnostics[0]
        bound = type(error)(
            one.summary,
            f"{one.detail}\nNo other zone was tried: the stack's data disks are in {tried[0]}",
            hint="Try again later. To give up what is on the disks, and begin in another zone:\n"
            "    tpuctl down",
        )
        bound.scope = error.scope
        return bound
    kinds = (NoCapacity, QuotaExceeded, type(refusals[-1].error))
    kind = next(kind for kind in kinds if any(isinstance(one.error, kind) for one in refusals))
    skipped = [zone for zone in zones if zone not in {one.zone for one in refusals}]
    lines = [f"{one}: {_words(one.error)}" for one in refusals]
    lines += [f"{zone}: not tried, for its region has refused" for zone in skipped]
    error = kind(
        "No zone has it",
        "\n".join(["none of the zones would make the node", *lines]),
        hint="\n".join([*_advice(refusals), _of_all_zones(stack)]),
    )
    error.scope = Scope.PROJECT
    return error


def _advice(refusals: Sequence[Refusal]) -> Iterator[str]:
    """What mends each refusal, once for all the zones that it is said of.

    Of zones that have none left, the sum says it anyway.
    """
    zones: dict[str, list[str]] = {}
    for refusal in refusals:
        diagnostic = refusal.error.diagnostics[0]
        if diagnostic.hint and diagnostic.summary != table().named("no-capacity").summary:
            zones.setdefault(diagnostic.hint, []).append(refusal.zone)
    for hint, named in zones.items():
        yield f"For {', '.join(named)}:\n{hint}"


def _of_all_zones(stack: Stack) -> str:
    waiting = ":\n    tpu: {queue: true}" if stack.queue is None else " longer with valid_until."
    return (
        f"Try again later, name more zones in tpu.zones, or wait in a queue{waiting}\n"
        f"Which zones offer the type:\n    tpuctl zones --type {stack.file.tpu.type}"
    )


def _words(error: TpuctlError) -> str:
    """What Google said, without why such things happen: shown once for each zone."""
    return error.diagnostics[0].detail.partition("\n")[0]
