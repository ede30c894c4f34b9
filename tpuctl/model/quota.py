"""Quota limits, usage, and what a plan adds; pure computation.

No API reports Cloud TPU usage, so it is counted: nodes in any state, and requests with all their
nodes, including FAILED and SUSPENDED ones, until they are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tpuctl.catalog import accelerator_type, machine_type, quota_limits, region_of
from tpuctl.errors import Diagnostic
from tpuctl.model.inventory import InventoryItem
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack import Stack

__all__ = ["QuotaLine", "QuotaReport", "Region", "amount_used", "compute_lines", "tpu_lines"]

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

    @property
    def left(self) -> float | None:
        """What remains after the plan; negative if it does not fit."""
        return None if self.allowed is None else self.allowed - self.used - self.added

    @property
    def is_short(self) -> bool:
        return self.added > 0 and self.left is not None and self.left < 0


@dataclass(frozen=True)
class QuotaReport:
    """The limits that a plan counts against, and what could not be read, with the reason."""

    lines: tuple[QuotaLine, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def shortfalls(self) -> tuple[Diagnostic, ...]:
        """Limits for which `up` would likely be rejected, with hints."""
        return tuple(_shortfall(line) for line in self.lines if line.is_short)


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
    adds_nodes: bool,
) -> tuple[QuotaLine, ...]:
    """The Cloud TPU limits that the stack's nodes count against.

    `adds_nodes` says whether the plan makes these, `found` has every node and request of the
    project, `limits` how much is allowed by the id of
    the limit and the place, None where there is no bound.
    """
    all_items = list(items)
    accelerator = stack.accelerator
    is_floating = stack.file.tpu.capacity in FLOATING
    lines = []
    for limit in quota_limits(accelerator, is_floating):
        location = stack.zone if limit.scope == "zone" else stack.region
        used = sum(
            amount_used(item, limit.id)
            for item in all_items
            if location in (item.zone, region_of(item.zone)) and not _is_deleted(item, stack, plan)
        )
        added = limit.amount(accelerator) * len(stack.nodes) if adds_nodes else 0
        is_known = (limit.id, location) in limits
        allowed = limits.get((limit.id, location))
        if allowed is None and (is_known or limit.scope == "region"):
            continue  # without a bound nothing can run short; of an unknown one the zone's will do
        lines.append(QuotaLine(limit.id, location, limit.unit, allowed, used, added, is_known))
    return tuple(lines)


def compute_lines(
    stack: Stack, plan: Plan, region: Region, *, adds_nodes: bool
) -> tuple[QuotaLine, ...]:
    """The region's limits that the plan's machines, disks and addresses count against."""
    lines = []
    for metric, added in _compute_needs(stack, plan, adds_nodes).items():
        if metric in region.quotas and added:
            allowed, used = region.quotas[metric]
            unit = "GB" if metric.endswith("_GB") else ""
            lines.append(QuotaLine(metric, region.name, unit, allowed, used, added))
    return tuple(lines)


def _compute_needs(stack: Stack, plan: Plan, adds_nodes: bool) -> dict[str, float]:
    needs: dict[str, float] = {}

    def add(metric: str, amount: float) -> None:
        needs[metric] = needs.get(metric, 0) + amount

    is_external = stack.file.network.ssh == "external"
    if is_external and adds_nodes and not stack.is_node:
        add("IN_USE_ADDRESSES", len(stack.nodes) * stack.accelerator.workers)
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
            add("IN_USE_ADDRESSES", 1)
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
    return any(each.address == item.address and each.action is Action.DELETE for each in plan)


def amount_used(item: InventoryItem, limit: str) -> int:
    """How much of a limit a node or request uses. Nodes of a request count with the request."""
    accelerator = accelerator_type(item.detail) if item.kind_class.is_tpu else None
    if accelerator is None or item.request:
        return 0
    for quota in quota_limits(accelerator, item.capacity in FLOATING):
        if quota.id == limit:
            return quota.amount(accelerator) * item.count
    return 0


def _shortfall(line: QuotaLine) -> Diagnostic:
    unit = f" {line.unit}" if line.unit else ""
    return Diagnostic(
        "Not enough quota",
        f"{line.limit} in {line.place} allows {line.allowed:g}{unit}: {line.used:g} used, "
        f"{line.added:g} more are needed",
        "The request will probably be rejected. Request more quota in the Cloud console, "
        "delete unused resources, or choose another zone. To list orphaned resources:\n    tpuctl "
        "orphans",
    )
