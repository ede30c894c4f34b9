"""What a race between zones may cost in addition to the stack itself.

A TPU is charged from ACTIVE until its request is deleted, so zones that grant it at the same time
are charged together for as long as the deletion takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.model.cost.cost import node_cost, with_addresses
from tpuctl.model.stack.stack import Stack

WITHDRAWAL_SECONDS = 120.0  # polling, and a deletion; not measured


@dataclass(frozen=True)
class RaceCost:
    """Amounts in US dollars, of TPUs with their addresses; None if a price is unknown."""

    zones: tuple[str, ...]
    per_hour: float | None  # of all zones together
    extra: float | None  # if all zones grant the TPU at the same time, and one is kept
    seconds: float = WITHDRAWAL_SECONDS  # until the others are deleted


def race_cost(stack: Stack, zones: tuple[str, ...]) -> RaceCost:
    """The cost of a race of this stack's TPU."""
    addresses = len(stack.nodes) * stack.accelerator.workers
    prices = []
    for zone in zones:
        line = node_cost(
            stack.accelerator, zone, capacity=stack.file.tpu.capacity, nodes=len(stack.nodes)
        )
        if stack.file.network.ssh == "external":
            line = with_addresses(line, addresses, spot=stack.is_spot)
        if line.per_hour is None:
            return RaceCost(zones, None, None)
        prices.append(line.per_hour)
    total = sum(prices)
    return RaceCost(zones, total, (total - min(prices)) * WITHDRAWAL_SECONDS / 3600)
