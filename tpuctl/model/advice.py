"""What to do next about the state that a stack is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tpuctl.model.inventory import GONE_BAD, Found, left_behind

__all__ = ["Advice", "advice_on"]

WAITING = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
STOPPED = ("STOPPED", "SUSPENDED", "TERMINATED")


@dataclass(frozen=True)
class Advice:
    """What is so, and the command of tpuctl's that does something about it."""

    text: str
    command: Literal["up", "down"]


def advice_on(found: Sequence[Found]) -> tuple[Advice, ...]:
    """About everything of one stack, the most important first."""
    if not found:
        return (Advice("Nothing of it exists. To bring it up:", "up"),)
    machines = [one for one in found if one.of.is_machine]
    if not machines and any(one.kind != "bucket" for one in found):
        return (Advice("No machine of it is left, but other things are. To remove them:", "down"),)
    if not machines:
        return (Advice("Nothing of it runs. To bring it up:", "up"),)
    told = [(one, advice) for one in machines if (advice := _of_state(one)) is not None]
    mended = {one.zone for one, _ in told}  # what stands beside it is used again then
    more = [
        Advice(f"{left.found.address}: {left.why}. To remove what is not used:", "up")
        for left in left_behind(found)
        if left.found.zone not in mended
    ]
    if all(one.kind == "controller" for one in machines):
        more = [Advice("The controller has no TPU beside it. To make one:", "up")]
    return tuple(dict.fromkeys([*(advice for _, advice in told), *more]))


def _of_state(one: Found) -> Advice | None:
    if one.kind == "queued":
        if one.state in GONE_BAD:
            return Advice(f"Request {one.name} is {one.state} and holds quota. To ask again:", "up")
        if one.state in WAITING:
            return Advice(f"Request {one.name} still waits. To wait with it:", "up")
        return None
    if one.of.is_tpu and one.state in GONE_BAD:
        return Advice(f"Node {one.name} is {one.state}. To make it anew:", "up")
    if one.state in STOPPED:
        what = "Controller" if one.kind == "controller" else "Node"
        return Advice(f"{what} {one.name} is {one.state}. To start it:", "up")
    return None
