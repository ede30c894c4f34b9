"""Suggests the next command for a stack's state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpuctl.model.status.inventory import DEAD_STATES, InventoryItem, find_orphaned

WAITING_STATES = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
STOPPED_STATES = ("STOPPED", "SUSPENDED", "TERMINATED")


@dataclass(frozen=True)
class Advice:
    """A finding, and the tpuctl command that acts on it."""

    text: str
    command: str  # `up`, `down`, or `logs -f JOB`


def advice_on(
    items: Sequence[InventoryItem], job: str = "", *, is_worked_on: bool = False
) -> tuple[Advice, ...]:
    """Advice for one stack, most important first.

    `job` is one that has not ended: following it recreates its node, and resumes it. Nothing is
    advised about a TPU that a program is creating.
    """
    if not items:
        return (Advice("Nothing of the stack was found. To create it:", "up"),)
    machines = [item for item in items if item.kind_class.is_machine]
    if not machines and any(item.kind != "bucket" for item in items):
        return (
            Advice("The stack has no machines left, but other resources. To delete them:", "down"),
        )
    if not machines:
        return (Advice("The stack is not running. To create it:", "up"),)
    advised = [
        (machine, advice)
        for machine in machines
        if (advice := _state_advice(machine, job)) is not None
    ]
    repaired_zones = {machine.zone for machine, _ in advised}  # resources there will be used again
    more = [
        Advice(f"{orphan.item.address}: {orphan.reason}. To delete unused resources:", "up")
        for orphan in find_orphaned(items)
        if orphan.item.zone not in repaired_zones
    ]
    if all(machine.kind == "controller" for machine in machines):
        if is_worked_on:
            return (Advice("To follow the job:", f"logs -f {job}"),) if job else ()
        more = [Advice("The controller has no TPU. To create one:", "up")]
    return tuple(dict.fromkeys([*(advice for _, advice in advised), *more]))


def _state_advice(item: InventoryItem, job: str) -> Advice | None:
    then, command = (f" and resume job {job}", f"logs -f {job}") if job else ("", "up")
    if item.kind == "queued":
        if item.state in DEAD_STATES:
            return Advice(
                f"Request {item.name} is {item.state} and uses quota. To request again{then}:",
                command,
            )
        if item.state in WAITING_STATES:
            return Advice(f"Request {item.name} is still waiting. To wait for it:", "up")
        return None
    if item.kind_class.is_tpu and item.state in DEAD_STATES:
        return Advice(f"Node {item.name} is {item.state}. To recreate it{then}:", command)
    if item.state in STOPPED_STATES:
        label = "Controller" if item.kind == "controller" else "Node"
        return Advice(f"{label} {item.name} is {item.state}. To start it:", "up")
    return None
