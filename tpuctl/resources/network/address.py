"""Reserved external addresses: tpuctl creates none, but lists those with its label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tpuctl.model.cost.cost import CostLine, address_cost
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.text.names import STACK_LABEL
from tpuctl.resources.base import CloudKind, Query, time_of


class Address(CloudKind):
    """Only listed; it is deleted by its creator."""

    kind = "address"
    group = "network"
    label = "reserved external addresses"
    is_billable = True

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return False

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        for region, address in query.aggregated("addresses"):
            yield InventoryItem(
                cls,
                address["name"],
                address["labels"][STACK_LABEL],
                region,
                address.get("status", ""),
                address.get("address", ""),
                time_of(address.get("creationTimestamp")),
            )

    @classmethod
    def cost(cls, item: InventoryItem) -> CostLine:
        return replace(address_cost(), note="in use")
