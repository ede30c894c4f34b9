"""What Google's list of SKUs says of the price of nodes; nothing where it does not say it surely.

Descriptions are not documented: these were seen in public listings and programs (2026-06 to -08).
Compute Engine charges v5e and later by chip and hour, a SKU for a region: `TpuV6e running in
Columbus`, `TpuV6e attached to Spot Preemptible VMs running in Columbus`, and for flex-start `DWS
Defined Duration V6e running in Columbus`. Cloud TPU charges v2, v3 and v4 by eight TensorCores and
hour: `TPU-v2 Accelerator USA`, `Tpu-v4 Pod Accelerator USA`. Chips that are reserved, committed to
or `Capacity Optimized` have SKUs of their own beside them, of the same usage type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tpuctl.catalog import AcceleratorType, Capacity, Price, region_of

__all__ = ["COMPUTE_ENGINE", "TPU_SERVICE", "PriceList", "Sku", "service_of"]

TPU_SERVICE: Final = "services/E000-3F24-B8AA"
COMPUTE_ENGINE: Final = "services/6F81-5844-456A"
TPU_API_GENERATIONS = ("v2", "v3", "v4")  # charged by Cloud TPU
CHIPS_PER_DEVICE = 4  # eight TensorCores, two a chip
_CHIP = r"(?:Tpu(V5e|V5p|V6e)|TPU(7x))"
BY_CHIP: Mapping[Capacity, tuple[str, re.Pattern[str]]] = {
    "on-demand": ("OnDemand", re.compile(rf"{_CHIP} running in .+", re.IGNORECASE)),
    "spot": (
        "Preemptible",
        re.compile(rf"{_CHIP} attached to Spot Preemptible VMs(?: running in .+)?", re.IGNORECASE),
    ),
    "flex-start": (
        "OnDemand",
        re.compile(r"DWS Defined Duration (?:(V5e|V5p|V6e)|(?:TPU)?(7x)) running in .+", re.I),
    ),
}
BY_DEVICE = re.compile(r"(?:Preemptible )?Tpu-v([234])( Pod)?(?: Accelerator)?(?: .*)?", re.I)
OTHER_TERMS = re.compile(r"commit|reserv|calendar|dws|capacity|evaluat|trial", re.IGNORECASE)


@dataclass(frozen=True)
class Sku:
    """One row of the list, as far as it matters here."""

    service: str
    description: str
    usage: str  # OnDemand, Preemptible, Commit1Yr, …
    regions: tuple[str, ...]
    unit: str
    price: float | None  # US dollars a unit; None where it depends on how much is used


@dataclass(frozen=True)
class _Meaning:
    price_class: str
    capacity: Capacity
    per_chip: float


class PriceList:
    """Prices of nodes from SKUs. `read` is the day on which they were asked for."""

    def __init__(self, skus: Iterable[Sku], read: str) -> None:
        self.read = read
        self._prices: dict[tuple[str, str, Capacity], set[float]] = {}
        for sku in skus:
            meaning = _meaning(sku)
            if meaning is not None:
                for region in sku.regions:
                    key = (meaning.price_class, region, meaning.capacity)
                    self._prices.setdefault(key, set()).add(round(meaning.per_chip, 9))

    def price(self, accelerator: AcceleratorType, zone: str, capacity: Capacity) -> Price | None:
        """Of one node; None where no SKU surely tells it, or two tell different ones."""
        prices = self._prices.get((accelerator.price_class, region_of(zone), capacity), set())
        if len(prices) != 1:
            return None
        return Price(next(iter(prices)) * accelerator.chips, self.read, capacity)


def service_of(accelerator: AcceleratorType) -> str:
    """The service whose SKUs a type is charged by."""
    return TPU_SERVICE if accelerator.generation in TPU_API_GENERATIONS else COMPUTE_ENGINE


def _meaning(sku: Sku) -> _Meaning | None:
    if not sku.price or sku.unit != "h":
        return None
    if sku.service == COMPUTE_ENGINE:
        for capacity, (usage, pattern) in BY_CHIP.items():
            match = pattern.fullmatch(sku.description)
            if match is not None and sku.usage == usage:
                name = (match[1] or f"tpu{match[2]}").lower()
                return _Meaning(name, capacity, sku.price)
        return None
    match = BY_DEVICE.fullmatch(sku.description)
    if (
        sku.service != TPU_SERVICE
        or match is None
        or sku.usage not in ("OnDemand", "Preemptible")
        or OTHER_TERMS.search(sku.description)
    ):
        return None
    is_spot = sku.usage == "Preemptible" or "preemptible" in sku.description.lower()
    name = _device_class(f"v{match[1]}", is_pod=bool(match[2]))
    if not name:
        return None
    return _Meaning(name, "spot" if is_spot else "on-demand", sku.price / CHIPS_PER_DEVICE)


def _device_class(generation: str, *, is_pod: bool) -> str:
    """v4 is sold as pods alone, v2 and v3 as either."""
    if generation == "v4":
        return "v4" if is_pod else ""
    return f"{generation}-pod" if is_pod else f"{generation}-8"
