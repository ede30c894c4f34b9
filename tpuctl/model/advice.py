"""What to do next about the state that a stack is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tpuctl.model.inventory import DEAD_STATES, InventoryItem, find_orphaned

__all__ = ["Advice", "advice_on"]

WAITING_STATES = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
STOPPED_STATES = ("STOPPED", "SUSPENDED", "TERMINATED")


@dataclass(frozen=True)
class Advice:
    """What is so, and the command of tpuctl's that does something about it."""

    text: str
    command: Literal["up", "down"]


def advice_on(items: Sequence[InventoryItem]) -> tuple[Advice, ...]:
    """About everything of one stack, the most important first."""
    if not items:
        return (Advice("Nothing of it exists. To bring it up:", "up"),)
    machines = [one for one in items if one.kind_class.is_machine]
    if not machines and any(one.kind != "bucket" for one in items):
        return (Advice("No machine of it is left, but other things are. To remove them:", "down"),)
    if not machines:
        return (Advice("Nothing of it runs. To bring it up:", "up"),)
    advised = [(one, advice) for one in machines if (advice := _state_advice(one)) is not None]
    repaired_zones = {one.zone for one, _ in advised}  # what stands beside it is used again then
    more = [
        Advice(f"{orphan.item.address}: {orphan.why}. To remove what is not used:", "up")
        for orphan in find_orphaned(items)
        if orphan.item.zone not in repaired_zones
    ]
    if all(one.kind == "controller" for one in machines):
        more = [Advice("The controller has no TPU beside it. To make one:", "up")]
    return tuple(dict.fromkeys([*(advice for _, advice in advised), *more]))


def _state_advice(item: InventoryItem) -> Advice | None:
    if item.kind == "queued":
        if item.state in DEAD_STATES:
            return Advice(
                f"Request {item.name} is {item.state} and holds quota. To ask again:", "up"
            )
        if item.state in WAITING_STATES:
            return Advice(f"Request {item.name} still waits. To wait with it:", "up")
        return None
    if item.kind_class.is_tpu and item.state in DEAD_STATES:
        return Advice(f"Node {item.name} is {item.state}. To make it anew:", "up")
    if item.state in STOPPED_STATES:
        label = "Controller" if item.kind == "controller" else "Node"
        return Advice(f"{label} {item.name} is {item.state}. To start it:", "up")
    return None
