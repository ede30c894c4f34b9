"""What a race between zones may cost in addition to the stack itself.

A TPU is charged from ACTIVE until its request is deleted, so zones that grant it at the same time
are charged together for as long as the deletion takes.
"""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.model.cost.cost import node_cost, with_addresses
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.stack import Stack

WITHDRAWAL_SECONDS = 120.0  # polling, and a deletion; not measured


@dataclass(frozen=True)
class RaceCost:
    """Amounts in US dollars, of TPUs with their addresses; None if a price is unknown."""

    places: tuple[Candidate, ...]
    per_hour: float | None  # of all zones together
    extra: float | None  # if all zones grant the TPU at the same time, and one is kept
    seconds: float = WITHDRAWAL_SECONDS  # until the others are deleted

    @property
    def zones(self) -> tuple[str, ...]:
        """The keys of its places."""
        return tuple(place.key for place in self.places)


def race_cost(stack: Stack, places: tuple[Candidate, ...]) -> RaceCost:
    """The cost of a race of this stack's TPU."""
    prices = []
    for place in places:
        there = stack.at(place)
        nodes, capacity = len(there.nodes), there.file.tpu.capacity
        line = node_cost(there.accelerator, there.zone, capacity=capacity, nodes=nodes)
        if stack.file.network.ssh == "external":
            addresses = nodes * there.accelerator.workers
            line = with_addresses(line, addresses, spot=there.is_spot)
        if line.per_hour is None:
            return RaceCost(places, None, None)
        prices.append(line.per_hour)
    total = sum(prices)
    return RaceCost(places, total, (total - min(prices)) * WITHDRAWAL_SECONDS / 3600)
