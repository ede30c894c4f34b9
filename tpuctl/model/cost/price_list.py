"""Node prices from Google's SKU list, only where they are unambiguous.

SKU descriptions are undocumented: these are from public listings and programs (2026-06 to -08).
Compute Engine charges v5e and later per chip-hour, with a SKU per region: `TpuV6e running in
Columbus`, `TpuV6e attached to Spot Preemptible VMs running in Columbus`, and for flex-start `DWS
Defined Duration V6e running in Columbus`. Cloud TPU charges v2, v3 and v4 per hour for eight
TensorCores: `TPU-v2 Accelerator USA`, `Tpu-v4 Pod Accelerator USA`. Reserved, committed and
`Capacity Optimized` chips have separate SKUs of the same usage type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tpuctl.catalog import AcceleratorType, Capacity, Price, region_of

TPU_SERVICE: Final = "services/E000-3F24-B8AA"
COMPUTE_ENGINE: Final = "services/6F81-5844-456A"
TPU_API_GENERATIONS = ("v2", "v3", "v4")  # charged by Cloud TPU
CHIPS_PER_DEVICE = 4  # eight TensorCores, two per chip
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
    """The relevant fields of a SKU."""

    service: str
    description: str
    usage: str  # OnDemand, Preemptible, Commit1Yr, …
    regions: tuple[str, ...]
    unit: str
    price: float | None  # US dollars per unit; None if tiered


@dataclass(frozen=True)
class _Meaning:
    price_class: str
    capacity: Capacity
    per_chip: float


class PriceList:
    """Node prices from SKUs. `read` is the date of the query."""

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
        """The price of one node; None if no SKU matches, or SKUs disagree."""
        prices = self._prices.get((accelerator.price_class, region_of(zone), capacity), set())
        if len(prices) != 1:
            return None
        return Price(next(iter(prices)) * accelerator.chips, self.read, capacity)


def service_of(accelerator: AcceleratorType) -> str:
    """The service that charges for a type."""
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
    """v4 is sold only as pods, v2 and v3 as both."""
    if generation == "v4":
        return "v4" if is_pod else ""
    return f"{generation}-pod" if is_pod else f"{generation}-8"
