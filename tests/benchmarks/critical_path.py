"""The minimum duration of a plan: the paces of its steps along the plan's own graph.

For each action, it lists which operations of the cloud must follow each other; the pace sets
how long each of them takes. Nothing here is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpuctl.engine.graph import order
from tpuctl.local_cloud.pace import Pace
from tpuctl.model.plan import Action, Change, Plan

# The operations of each change, in order; changes that are not listed finish immediately.
STEPS: Mapping[tuple[str, Action], tuple[str, ...]] = {
    ("project", Action.CREATE): ("projects.create",),
    ("apis", Action.UPDATE): ("services.enable",),
    ("network", Action.DELETE): ("compute.networks",),
    ("firewall", Action.CREATE): ("compute.firewalls",),
    ("firewall", Action.DELETE): ("compute.firewalls",),
    ("disk", Action.CREATE): ("compute.disks",),
    ("disk", Action.DELETE): ("compute.disks",),
    ("node", Action.CREATE): ("tpu.nodes.create",),
    ("node", Action.DELETE): ("tpu.nodes.delete",),
    ("queued", Action.CREATE): (
        "tpu.queued.create",
        "tpu.queued.accept",
        "tpu.queued.wait",
        "tpu.nodes.create",
    ),
    ("queued", Action.DELETE): ("tpu.nodes.delete",),
    ("tpu", Action.CREATE): ("tpu.v1.create",),
    ("tpu", Action.DELETE): ("tpu.v1.delete",),
    ("controller", Action.CREATE): ("compute.instances.insert",),
    ("controller", Action.DELETE): ("compute.instances.delete",),
}
# Policies see a new account or role only after a delay, for which grants to or by it wait.
VISIBLE = {"account": "identity.accounts.visible", "role": "identity.roles.visible"}
GRANTS = ("grants", "project-grants", "node-grants")


@dataclass(frozen=True)
class CriticalPath:
    """The longest path through a plan: its changes that take time, with their seconds."""

    steps: tuple[tuple[str, float], ...]

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.steps)

    def __str__(self) -> str:
        return " → ".join(f"{address.partition('/')[0]} {s:.3g}" for address, s in self.steps)


def seconds_of(change: Change, pace: Pace) -> float:
    """The minimum duration of a change's operations."""
    kind = change.address.partition("/")[0]
    return sum(pace.seconds(step) for step in STEPS.get((kind, change.action), ()))


def critical_path(plan: Plan, pace: Pace, booted: Mapping[str, float] = {}) -> CriticalPath:
    """Follow the plan's graph. `booted` has the changes that took the cloud longer than its pace.

    A network that will be created counts nothing: enabling Compute Engine creates `default` in
    ordinary projects, and a local cloud has no others.
    """
    ends: dict[str, CriticalPath] = {}
    for address in order(plan.after):
        change = plan.change(address)
        before = CriticalPath(())
        for other in plan.after[address]:
            path = ends[other]
            waits = until_visible(plan.change(other), change, pace)
            if waits:
                path = CriticalPath((*path.steps, (f"{other} is seen", waits)))
            before = max(before, path, key=lambda path: path.seconds)
        seconds = max(seconds_of(change, pace), booted.get(address, 0.0))
        steps = (*before.steps, (address, seconds)) if seconds else before.steps
        ends[address] = CriticalPath(steps)
    return max(ends.values(), key=lambda path: path.seconds)


def until_visible(creation: Change, granted: Change, pace: Pace) -> float:
    """How long a change waits until a resource created just before is visible."""
    kind, other = (change.address.partition("/")[0] for change in (creation, granted))
    is_new = creation.action is Action.CREATE and kind in VISIBLE
    return pace.seconds(VISIBLE[kind]) if is_new and other in GRANTS else 0.0
