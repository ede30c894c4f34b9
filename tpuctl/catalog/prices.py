"""What a node costs, with the date of the price."""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.catalog.tpu import AcceleratorType, data, read_date

__all__ = ["Price", "node_price"]


@dataclass(frozen=True)
class Price:
    """US dollars an hour for a whole node, with the date of the price list."""

    per_hour: float
    read: str
    is_spot: bool

    def __str__(self) -> str:
        kind = "spot, floats" if self.is_spot else "on demand"
        return f"${self.per_hour:,.2f}/h ({kind}, prices of {self.read})"


def node_price(accelerator: AcceleratorType, zone: str, *, spot: bool = False) -> Price | None:
    """The price of one node of this type in this zone, or None where nobody published one."""
    row = data()["prices"][accelerator.price_class].get(zone)
    if row is None or not row[1 if spot else 0]:
        return None
    return Price(row[1 if spot else 0] * accelerator.chips, read_date(), spot)
