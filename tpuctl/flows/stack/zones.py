"""Choose the zone for a stack's node, and the error to raise if all zones fail."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tpuctl.catalog import Api, region_of
from tpuctl.errors import Conflict, NoCapacity, QuotaExceeded, Scope, TpuctlError
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import DEAD_STATES, InventoryItem, with_requests
from tpuctl.model.troubleshooting.known_errors import table
from tpuctl.resources.composition import kind_of
from tpuctl.resources.tpu.race import Race

ACTIVE_STATES = ("READY", "ACTIVE")


@dataclass(frozen=True)
class Refusal:
    """The error from one candidate."""

    candidate: Candidate
    error: TpuctlError

    def __str__(self) -> str:
        return f"{self.candidate}: {self.error.diagnostics[0].summary}"


def home(stack: Stack, resources: Sequence[InventoryItem]) -> Candidate:
    """Where the stack is up, otherwise where its data is, otherwise its first candidate.

    Raises Conflict if it has a TPU or data disk where the stack file lists no candidate: those are
    charged, and must not be deleted without a request.
    """
    tpus = [
        resource
        for resource in with_requests(resources, stack.file.tpu.capacity)
        if resource.kind_class.is_tpu
    ]
    disks = [resource for resource in resources if _holds_data(resource, stack)]
    for tpu in tpus:
        if _is_in_use(tpu) and _place(tpu, stack) not in stack.candidates:
            raise _outside_error(tpu, "Node", stack)
    working = [place for place in stack.candidates if _is_active(place, tpus, stack)]
    if working:
        return working[0]
    for disk in disks:
        if disk.zone not in stack.zones:
            raise _outside_error(disk, "Disk", stack)
    with_data = [
        place for place in stack.candidates if any(disk.zone == place.zone for disk in disks)
    ]

    def rank(candidate: Candidate) -> tuple[bool, bool, bool]:
        resources = [resource for resource in tpus if _place(resource, stack) == candidate]
        return (
            not any(_is_in_use(resource) for resource in resources),
            all(resource.state in DEAD_STATES for resource in resources),
            not resources,
        )

    if with_data:  # disks are zonal
        return with_data[0]
    return min(stack.candidates, key=rank)  # the first in order among equals


def _place(tpu: InventoryItem, stack: Stack) -> Candidate:
    api = tpu.kind_class.api
    assert api is not None, "every kind of TPU is sold by an API"
    nodes = stack.names.nodes(tpu.count) if tpu.kind == "queued" else (tpu.name,)
    return stack.place_of(tpu.zone, api, tpu.detail, tpu.capacity, nodes)


def raced(stack: Stack, items: Iterable[InventoryItem] = ()) -> tuple[Candidate, ...]:
    """The places of a race: in each zone, for each API, the first alternative, or that of the TPU
    which is there already. Names are the same in all places, so there can be only one.

    No place at all if each would be a TPU VM without a queue: there would soon be one in each.
    """
    if not any(place.api == "compute" or stack.at(place).queue for place in stack.candidates):
        return ()
    existing = {_place(item, stack) for item in items if item.kind_class.is_tpu}
    entered = {(place.zone, place.api): place for place in reversed(stack.candidates)}
    entered |= {(place.zone, place.api): place for place in stack.candidates if place in existing}
    return tuple(place for place in stack.candidates if place in entered.values())


def refuse_other_slices(
    stack: Stack, items: Sequence[InventoryItem], addresses: Collection[str]
) -> None:
    """Raise Conflict if slices are in use that the stack no longer has, such as one of several
    hosts before its type was changed: those are charged. `addresses` are the stack's resources."""
    for item in items:
        is_there = item.kind_class.is_tpu and _place(item, stack) == stack.candidate
        is_machine = item.kind_class.api == "compute"
        if is_there and is_machine and _is_in_use(item) and not _is_of(item, addresses):
            raise Conflict(
                "Node differs",
                f"stack {stack.name} has {item.address} ({item.detail}), the stack file says "
                f"{stack.slices} x {stack.accelerator.name}",
                hint="To recreate it, delete it first:\n    tpuctl down",
            )


def _is_of(item: InventoryItem, addresses: Collection[str]) -> bool:
    """Whether it is one of the stack's resources, whose addresses include their zone in a race."""
    return item.local_address in addresses or item.address in addresses


def with_controller(stack: Stack, items: Collection[InventoryItem]) -> Stack:
    """The stack with its controller where it is, as it works with a TPU in any zone. That of a TPU
    node must be beside it."""
    zones = [item.zone for item in items if item.kind == "controller" and item.zone in stack.zones]
    if stack.is_node or stack.controller is None or not zones or stack.zone in zones:
        return replace(stack, controller_zone="")
    return replace(stack, controller_zone=zones[0])


def is_left_over(
    item: InventoryItem, stack: Stack, used: Sequence[Candidate], addresses: Collection[str]
) -> bool:
    """Whether it is in a zone that is not used, of the other API, of slices that the stack no
    longer has, or of another alternative, which is created otherwise.

    `used` is the stack's place, or those of a race; `addresses` are those of the stack's resources.
    """
    api, here = item.kind_class.api, [place for place in used if item.serves(place.zone)]
    is_of_other_api = api is not None and api not in {place.api for place in here}
    is_of_other_slice = api == "compute" and not _is_of(item, addresses)
    requests = {f"queued/{item.request}", f"queued/{item.zone}/{item.request}"}
    is_of_alternative = len(stack.alternatives) > 1 and item.kind_class.is_tpu
    is_known = _is_of(item, addresses) or not requests.isdisjoint(addresses)
    return not here or is_of_other_api or is_of_other_slice or (is_of_alternative and not is_known)


def with_other_tpus_first(plan: Plan, addresses: Collection[str], zone: str) -> Plan:
    """The plan, which creates the TPU after those of other alternatives are deleted from the zone:
    they may have its name. `addresses` are all but those that are left over."""
    others = {
        change.address
        for change in plan
        if change.address not in addresses
        and kind_of(change.address).is_tpu
        and f"/{zone}/" in change.address
    }
    after = {
        address: needed | others if address in addresses and kind_of(address).is_tpu else needed
        for address, needed in plan.after.items()
    }
    return replace(plan, after=after)


def place_and_race(
    stack: Stack, items: Sequence[InventoryItem], candidate: Candidate | None, *, race: bool
) -> tuple[Candidate, Race | None]:
    """The place to plan for, by default the stack's `home`, and a race between the places of
    `raced`, if one is wanted and no TPU is ready."""
    place = candidate or home(stack, items)
    if not race or has_active(items):
        return place, None
    places = raced(stack, items)
    return place if place in places else places[0], Race(places)


def _outside_error(resource: InventoryItem, noun: str, stack: Stack) -> Conflict:
    if noun == "Node" and _place(resource, stack).alternative not in {
        place.alternative for place in stack.candidates
    }:
        return Conflict(
            "Node of another alternative",
            f"stack {stack.name} has {resource.address} ({resource.detail}), and the job may be "
            f"restarted only on {stack.counted_type}",
            hint="If its checkpoints fit, set\n    job: {resume: any}\n"
            "Or take the stack down first:\n    tpuctl down",
        )
    apis = {place.api for place in stack.candidates if place.zone == resource.zone}
    if resource.kind_class.api in apis:
        return Conflict(
            f"{noun} of no alternative",
            f"stack {stack.name} has {resource.address} ({resource.detail}), but the stack file "
            f"lists only {_listed(stack.candidates)}",
            hint="Add it to tpu.any_of, or take the stack down first:\n    tpuctl down",
        )
    if apis:
        return Conflict(
            f"{noun} from another API",
            f"stack {stack.name} has {resource.address}, but the stack file lists only "
            f"{_listed(stack.candidates)}",
            hint="Use tpu.api: auto, or take the stack down first:\n    tpuctl down",
        )
    return Conflict(
        f"{noun} in another zone",
        f"stack {stack.name} has {resource.address}, but the stack file lists only "
        f"{', '.join(stack.zones)}",
        hint="Add that zone to tpu.zones, or take the stack down first:\n    tpuctl down",
    )


def _listed(candidates: Sequence[Candidate]) -> str:
    return ", ".join(map(str, candidates))


def has_active(resources: Sequence[InventoryItem]) -> bool:
    """Whether the stack has a TPU that is ready."""
    return any(
        resource.kind_class.is_tpu and resource.state in ACTIVE_STATES for resource in resources
    )


def _is_active(candidate: Candidate, tpus: Sequence[InventoryItem], stack: Stack) -> bool:
    return any(_place(tpu, stack) == candidate and tpu.state in ACTIVE_STATES for tpu in tpus)


def _is_in_use(resource: InventoryItem) -> bool:
    """Whether a node may hold data: a stopped one keeps its disk."""
    if resource.kind == "queued":
        return resource.state in ACTIVE_STATES
    return resource.state not in (*DEAD_STATES, "PENDING", "CREATING", "DELETING")


def _holds_data(resource: InventoryItem, stack: Stack) -> bool:
    """Whether it is a data disk; a controller's boot disk is deleted with its machine."""
    return resource.kind == "disk" and resource.name.startswith(
        stack.names.disk(0).removesuffix("0")
    )


def candidates_to_try(stack: Stack, plan: Plan) -> tuple[Candidate, ...]:
    """Where this plan may be applied: only in the stack's zone if it has data disks.

    In another zone, new disks would be created and these deleted with their data.
    """
    names = [stack.names.disk(index) for index in range(len(stack.file.tpu.data_disks))]
    existing_disks = [
        change
        for change in plan
        if change.address in {f"disk/{name}" for name in names} and change.action is Action.NOTHING
    ]
    if not existing_disks:
        return stack.candidates
    return tuple(place for place in stack.candidates if place.zone == stack.zone)


def next_candidate(
    candidates: Sequence[Candidate], refusals: Sequence[Refusal]
) -> Candidate | None:
    """The first one not tried yet whose region, or API, has not failed as a whole."""
    tried = {refusal.candidate for refusal in refusals}
    closed = {
        (_pool(refusal.candidate), region_of(refusal.candidate.zone))
        for refusal in refusals
        if refusal.error.scope is Scope.REGION
    }
    closed_pools = {
        _pool(refusal.candidate) for refusal in refusals if refusal.error.scope is Scope.PROJECT
    }
    left = (
        candidate
        for candidate in candidates
        if candidate not in tried
        and _pool(candidate) not in closed_pools
        and (_pool(candidate), region_of(candidate.zone)) not in closed
    )
    return next(left, None)


def _pool(candidate: Candidate) -> tuple[Api, int]:
    """What has quotas of its own: what a region or a project refuses an alternative at one API, it
    may grant at the other, or to another alternative."""
    return candidate.api, candidate.alternative


def may_continue(error: TpuctlError, candidates: Sequence[Candidate]) -> bool:
    """Whether another candidate may succeed after this error."""
    if isinstance(error, QuotaExceeded) and error.scope is Scope.PROJECT:
        return len({*map(_pool, candidates)}) > 1
    return error.scope in (Scope.ZONE, Scope.REGION)


def widest_error(errors: Mapping[str, TpuctlError]) -> TpuctlError:
    """Of several failures the one with the widest scope, which other zones would not fix."""
    order = [Scope.FATAL, Scope.PROJECT, Scope.REGION, Scope.ZONE]
    return min(errors.values(), key=lambda error: order.index(error.scope))


def no_zone_error(
    refusals: Sequence[Refusal],
    stack: Stack,
    tried: Sequence[Candidate],
    *,
    is_over: bool = False,
) -> TpuctlError:
    """The error to raise when no candidate is left: lists all failures; the exit code is that of
    the one most likely to pass, such as missing capacity.

    `tried` are the candidates of the stack file that could be tried; the others were not if
    `tpu.deadline` `is_over`.
    """
    candidates = stack.candidates
    if len(candidates) == 1:
        return _only_error(refusals[0].error, stack)
    if len(tried) == 1:
        error = refusals[0].error
        diagnostic = error.diagnostics[0]
        pinned = type(error)(
            diagnostic.summary,
            f"{diagnostic.detail}\n"
            f"No other zone was tried: the stack's data disks are in {tried[0].zone}",
            hint="Try again later. To delete the disks and start over in another zone:\n"
            "    tpuctl down",
        )
        pinned.scope = error.scope
        return pinned
    kinds = (NoCapacity, QuotaExceeded, type(refusals[-1].error))
    kind = next(
        kind for kind in kinds if any(isinstance(refusal.error, kind) for refusal in refusals)
    )
    failed = {refusal.candidate: refusal.error for refusal in refusals}
    lines = [f"{refusal}: {_message(refusal.error)}" for refusal in refusals]
    lines += [
        f"{candidate}: not tried, because "
        + (
            "tpu.deadline has passed"
            if is_over
            else f"its {_closed_noun(candidate, failed)} failed"
        )
        for candidate in candidates
        if candidate not in failed
    ]
    error = kind(
        "No zone available",
        "\n".join(["the node could not be created in any zone", *lines]),
        hint="\n".join([*_advice(refusals), _general_advice(stack)]),
    )
    error.scope = Scope.PROJECT
    return error


def _only_error(error: TpuctlError, stack: Stack) -> TpuctlError:
    """The error of the only candidate; without capacity at Compute Engine, which has no queue, with
    other advice."""
    diagnostic = error.diagnostics[0]
    if "tpu" in stack.apis or diagnostic.summary != table().by_name("no-capacity").summary:
        return error
    advised = type(error)(diagnostic.summary, diagnostic.detail, hint=_general_advice(stack))
    advised.scope = error.scope
    return advised


def _advice(refusals: Sequence[Refusal]) -> Iterator[str]:
    """Each distinct hint of the errors, with the zones that it applies to.

    Zones without capacity are covered by the general advice.
    """
    zones: dict[str, list[str]] = {}
    for refusal in refusals:
        diagnostic = refusal.error.diagnostics[0]
        if diagnostic.hint and diagnostic.summary != table().by_name("no-capacity").summary:
            zones.setdefault(diagnostic.hint, []).append(str(refusal.candidate))
    for hint, zone_names in zones.items():
        yield f"For {', '.join(zone_names)}:\n{hint}"


def _general_advice(stack: Stack) -> str:
    if stack.file.tpu.queue is not None:
        waiting = " longer with valid_until."
    elif "tpu" in stack.apis:
        waiting = " in a queue:\n    tpu: {queue: true}"
    else:
        waiting = " with flex-start:\n    tpu: {capacity: flex-start, queue: {run_for: 4h}}"
    return (
        f"Try again later, add zones to tpu.zones, or wait{waiting}\n"
        f"List the zones that offer the type:\n    tpuctl zones {stack.file.tpu.type}"
    )


def _closed_noun(candidate: Candidate, failed: Mapping[Candidate, TpuctlError]) -> str:
    """What failed as a whole: the API in the project, or the region."""
    is_api = any(
        _pool(other) == _pool(candidate) and error.scope is Scope.PROJECT
        for other, error in failed.items()
    )
    return "API" if is_api else "region"


def _message(error: TpuctlError) -> str:
    """Google's message without the explanation, shown once per zone."""
    return error.diagnostics[0].detail.partition("\n")[0]
