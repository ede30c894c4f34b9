"""Quota limits, usage, and what a plan adds; pure computation.

No API reports the usage of TPU limits, so it is counted: nodes in any state, and requests with all
their nodes, including FAILED and SUSPENDED ones, until they are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from tpuctl.catalog import (
    API_NAMES,
    Api,
    Capacity,
    QuotaLimit,
    accelerator_type,
    apis_of,
    machine_type,
    quota_limits,
    region_of,
    zones_of,
)
from tpuctl.errors import Diagnostic, QuotaExceeded
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import DELETING, InventoryItem

ADDRESSES = "IN_USE_ADDRESSES"
FLOATING = ("spot", "preemptible", "flex-start")
SSD = ("pd-balanced", "pd-ssd")
FAMILIES_WITH_CPU_QUOTA = ("n2", "n2d", "c2", "c2d")  # other families of the catalog count as CPUS


@dataclass(frozen=True)
class QuotaLine:
    """One limit in one place. None for what could not be found out; a limit of None is none."""

    limit: str  # as refusals name it
    place: str  # a zone or a region
    unit: str  # "cores", "chips", "GB", "" for things that are counted
    allowed: float | None
    used: float
    added: float  # by the plan
    is_known: bool = True  # False: the limit is unknown
    quota: QuotaLimit | None = None  # the limit, of TPUs

    @property
    def left(self) -> float | None:
        """What remains after the plan; negative if it does not fit."""
        return None if self.allowed is None else self.allowed - self.used - self.added

    @property
    def is_short(self) -> bool:
        return self.added > 0 and self.left is not None and self.left < 0


@dataclass(frozen=True)
class OtherPool:
    """TPU quota that would be enough, of an API that the plan does not use."""

    api: Api
    line: QuotaLine
    is_next: bool  # whether `up` tries that API if the one in use rejects the TPU


@dataclass(frozen=True)
class QuotaReport:
    """The limits that a plan counts against, and what could not be read, with the reason."""

    lines: tuple[QuotaLine, ...] = ()
    unread: tuple[str, ...] = ()
    other_pool: OtherPool | None = None
    blocking: tuple[QuotaLine, ...] = ()  # why no zone can fit, one limit each; else empty
    of_alternatives: tuple[QuotaLine, ...] = ()  # the limits of those that `up` tries later

    @property
    def shortfalls(self) -> tuple[Diagnostic, ...]:
        """Limits for which `up` would likely be rejected, with hints."""
        return tuple(_shortfall(line, self.other_pool) for line in self.lines if line.is_short)

    def error(self, project: str, *, is_local: bool) -> QuotaExceeded | None:
        """The error that keeps `up` from starting, with how to request more quota."""
        if not self.blocking:
            return None
        first, pool = self.blocking[0], self.other_pool
        hint = _request_hint(first, project, is_local=is_local)
        if pool is not None and first.quota is not None:
            hint += f"\nOr use the quota of {API_NAMES[pool.api]}, which has room:\n"
            hint += f"    tpu: {{api: {pool.api}}}"
        return QuotaExceeded("Not enough quota", "\n".join(map(_needs, self.blocking)), hint=hint)


@dataclass(frozen=True)
class Region:
    """A region's quota in Compute Engine: metrics with limit and usage."""

    name: str
    quotas: Mapping[str, tuple[float, float]]


def tpu_lines(
    stack: Stack,
    plan: Plan,
    items: Iterable[InventoryItem],
    limits: Mapping[tuple[str, str], float | None],
    *,
    new_nodes: int,
    api: Api | None = None,
) -> tuple[QuotaLine, ...]:
    """The TPU limits that the stack's nodes count against, at the API in use or another.

    `new_nodes` is how many of these the plan makes, `items` has every node and request of the
    project, `limits` how much is allowed by the id of the limit and the place, None where there is
    no bound.
    """
    all_items = list(items)
    api = api or stack.api
    capacity = stack.file.tpu.capacity
    if _is_reserved(api, capacity):
        return ()

    def lines_of(spot: bool) -> tuple[QuotaLine, ...]:
        accelerator = stack.accelerator
        lines = []
        for index, limit in enumerate(quota_limits(accelerator, spot, api)):
            location = stack.zone if limit.scope == "zone" else stack.region
            used = sum(
                amount_used(item, limit)
                for item in all_items
                if location in (item.zone, region_of(item.zone))
                and not _is_deleted(item, stack, plan)
            )
            added = limit.amount(accelerator) * new_nodes
            is_known = (limit.id, location) in limits
            allowed = limits.get((limit.id, location))
            if allowed is None and (is_known or index > 0):
                continue  # without a bound nothing can run short; the smallest place will do
            lines.append(
                QuotaLine(limit.id, location, limit.unit, allowed, used, added, is_known, limit)
            )
        return tuple(lines)

    lines = lines_of(capacity in FLOATING)
    if api == "compute" and capacity == "flex-start" and any(line.is_short for line in lines):
        standard = lines_of(False)  # used if the preemptible pool has no room
        return lines if any(line.is_short or not line.is_known for line in standard) else standard
    return lines


def other_pool(
    stack: Stack,
    plan: Plan,
    items: Iterable[InventoryItem],
    limits: Mapping[tuple[str, str], float | None],
) -> OtherPool | None:
    """The pool of another API that has room for the stack's nodes in its zone, if one has.

    The arguments are those of `tpu_lines`.
    """
    all_items = list(items)
    for api in apis_of(stack.accelerator):
        if api == stack.api or stack.zone not in zones_of(stack.accelerator, api):
            continue
        lines = tpu_lines(stack, plan, all_items, limits, new_nodes=len(stack.nodes), api=api)
        if lines and all(line.is_known and not line.is_short for line in lines):
            is_next = any(candidate.api == api for candidate in stack.candidates)
            return OtherPool(api, lines[0], is_next)
    return None


def compute_lines(
    stack: Stack, plan: Plan, region: Region, *, new_nodes: int
) -> tuple[QuotaLine, ...]:
    """The region's limits that the plan's machines, disks and addresses count against."""
    lines = []
    for metric, added in _compute_needs(stack, plan, new_nodes).items():
        if metric in region.quotas and added:
            allowed, used = region.quotas[metric]
            unit = "GB" if metric.endswith("_GB") else ""
            lines.append(QuotaLine(metric, region.name, unit, allowed, used, added))
    return tuple(lines)


def blocking_lines(
    stack: Stack,
    plan: Plan,
    items: Iterable[InventoryItem],
    limits: Mapping[tuple[str, str], float | None],
    region: Region | None,
    candidates: Iterable[Candidate],
    *,
    new_nodes: int,
) -> tuple[QuotaLine, ...]:
    """Why the plan fits into the quota of none of the candidates, one limit for each; empty if it
    may fit somewhere.

    Only known limits count, and not what is being deleted or belongs to the stack itself. Nor do
    external addresses of the TPU API's machines, and reservations there: whether Google counts
    them is not known.
    """
    all_items = list(items)
    others = [item for item in all_items if item.stack != stack.name and item.state != DELETING]
    recreates = any(_is_deleted(item, stack, plan) for item in all_items)
    blocking = []
    for candidate in candidates if new_nodes else (stack.candidate,):
        stack_in_zone = stack.at(candidate)
        if stack_in_zone.file.tpu.capacity == "reserved":
            return ()
        is_other = candidate.alternative != stack.candidate.alternative
        count = len(stack_in_zone.nodes) if is_other else new_nodes
        lines = list(tpu_lines(stack_in_zone, plan, others, limits, new_nodes=count))
        if region is not None and region.name == stack_in_zone.region and not recreates:
            lines += (
                line
                for line in compute_lines(stack_in_zone, plan, region, new_nodes=count)
                if stack_in_zone.is_compute or line.limit != ADDRESSES
            )
        short = [line for line in lines if line.is_short]
        if not short:
            return ()
        blocking.append(short[0])
    return tuple(dict.fromkeys(blocking))


def alternative_lines(
    stack: Stack,
    plan: Plan,
    items: Iterable[InventoryItem],
    limits: Mapping[tuple[str, str], float | None],
    candidates: Iterable[Candidate],
) -> tuple[QuotaLine, ...]:
    """The TPU limits that the stack's other alternatives count against, in each of their zones."""
    all_items = list(items)
    others = (
        stack.at(candidate)
        for candidate in candidates
        if candidate.alternative != stack.candidate.alternative
    )
    return tuple(
        dict.fromkeys(
            line
            for other in others
            for line in tpu_lines(other, plan, all_items, limits, new_nodes=len(other.nodes))
        )
    )


def _compute_needs(stack: Stack, plan: Plan, new_nodes: int) -> dict[str, float]:
    needs: dict[str, float] = {}

    def add(metric: str, amount: float) -> None:
        needs[metric] = needs.get(metric, 0) + amount

    is_external = stack.file.network.ssh == "external"
    if is_external and not stack.is_node:
        add(ADDRESSES, new_nodes * stack.accelerator.workers)
    if stack.is_compute:
        machines = new_nodes * stack.machine.hosts
        add(_disk_metric(stack.boot_disk_type), stack.file.tpu.boot_disk.size_gb * machines)
    if stack.controller is not None and _is_new(plan, f"controller/{stack.names.controller}"):
        machine = machine_type(stack.controller.machine_type)
        if machine is not None:
            cpu_metric = (
                f"{machine.family.upper()}_CPUS"
                if machine.family in FAMILIES_WITH_CPU_QUOTA
                else "CPUS"
            )
            add(cpu_metric, machine.vcpus)
        add(_disk_metric(stack.controller.disk_type), stack.controller.disk_gb)
        if is_external:
            add(ADDRESSES, 1)
    for index, disk in enumerate(stack.file.tpu.data_disks):
        if disk.size_gb is not None and _is_new(plan, f"disk/{stack.names.disk(index)}"):
            add(_disk_metric(disk.type), disk.size_gb)
    needs.pop("", None)
    return needs


def _disk_metric(kind: str) -> str:
    """The quota metric of a disk type; empty for Hyperdisks, whose limits vary by location."""
    if kind == "pd-standard":
        return "DISKS_TOTAL_GB"
    return "SSD_TOTAL_GB" if kind in SSD else ""


def _is_new(plan: Plan, address: str) -> bool:
    """Whether the plan creates it."""
    return any(change.action is Action.CREATE and change.address == address for change in plan)


def _is_deleted(item: InventoryItem, stack: Stack, plan: Plan) -> bool:
    """Whether the plan deletes it, to recreate it or because its zone changed."""
    if item.stack != stack.name:
        return False
    if item.zone == stack.zone:
        return _is_new(plan, f"{item.kind}/{item.name}") or bool(
            item.request and _is_new(plan, f"queued/{item.request}")
        )
    return any(change.address == item.address and change.action is Action.DELETE for change in plan)


def amount_used(item: InventoryItem, limit: QuotaLimit) -> int:
    """How much of a limit a node or request uses. Nodes of a request count with the request."""
    accelerator = accelerator_type(item.detail) if item.kind_class.is_tpu else None
    api = item.kind_class.api or "tpu"
    if accelerator is None or item.request or _is_reserved(api, item.capacity):
        return 0
    if limit in quota_limits(accelerator, item.capacity in FLOATING, api):
        return limit.amount(accelerator) * item.count
    return 0


def _is_reserved(api: Api, capacity: Capacity) -> bool:
    """Whether TPUs of this capacity use no quota: at Compute Engine, the reservation did."""
    return api == "compute" and capacity == "reserved"


def console_url(project: str, api: Api = "tpu") -> str:
    """The quota page of the Google Cloud console."""
    where = "https://console.cloud.google.com/iam-admin/quotas"
    return f"{where}?service={api}.googleapis.com&project={quote(project)}"


def increase_command(project: str, limit: QuotaLimit, place: str, preferred: float) -> str:
    """The command that requests a higher limit in a zone or region."""
    dimensions = ",".join(f"{name}={value}" for name, value in limit.dimensions(place).items())
    return (
        f"gcloud quotas preferences create --project={project} --service={limit.api}.googleapis.com"
        f" --quota-id={limit.id} --dimensions={dimensions} --preferred-value={preferred:g}"
    )


def _request_hint(line: QuotaLine, project: str, *, is_local: bool) -> str:
    """How to raise a limit so that the plan fits."""
    preferred = line.used + line.added
    if is_local:
        limit = line.limit if line.quota is None else line.quota.id
        return f"Raise it:\n    tpuctl local set quota {limit} {line.place} {preferred:g}"
    if line.quota is None:
        return f"Request more quota:\n    {console_url(project, 'compute')}"
    return (
        f"Request more quota:\n    {increase_command(project, line.quota, line.place, preferred)}"
        f"\nor in the Cloud console:\n    {console_url(project, line.quota.api)}"
    )


def _needs(line: QuotaLine) -> str:
    unit = f" {line.unit}" if line.unit else ""
    return (
        f"{line.limit} in {line.place} allows {line.allowed:g}{unit}: {line.used:g} used, "
        f"{line.added:g} more are needed"
    )


def _shortfall(line: QuotaLine, other: OtherPool | None) -> Diagnostic:
    detail = _needs(line)
    if other is not None and line.unit in ("cores", "chips"):
        pool = other.line
        return Diagnostic(
            "Quota of the wrong pool",
            f"{detail}. The separate quota pool of {API_NAMES[other.api]} has room: "
            f"{pool.limit} in {pool.place} allows {pool.allowed:g} {pool.unit}, {pool.used:g} used",
            "The request will probably be rejected, and then repeated at that API."
            if other.is_next
            else "The request will probably be rejected. To use the other API's quota, set\n"
            f"    tpu: {{api: {other.api}}}",
        )
    return Diagnostic(
        "Not enough quota",
        detail,
        "The request will probably be rejected. Request more quota in the Cloud console, "
        "delete unused resources, or choose another zone. To list orphaned resources:\n    tpuctl "
        "orphans",
    )
