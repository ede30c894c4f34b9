"""Reservations of TPUs, now or in the future, as Compute Engine lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tpuctl.catalog import TPU_MACHINE_FAMILIES

# By the end of `vmFamily`, for reservations of chips rather than machines.
_GENERATIONS: Mapping[str, str] = {
    "CT3": "v3",
    "CT3P": "v3",
    "CT4P": "v4",
    "CT5L": "v5e",
    "CT5LP": "v5e",
    "CT5P": "v5p",
    "CT6E": "v6e",
    "TPU7X": "tpu7x",
}
ACTIVE = "READY"


@dataclass(frozen=True)
class TpuReservation:
    """A reservation of TPUs, to be named in `tpu.reservation`; with `is_future`, one that begins at
    `start`.

    `count` is of machines of the type, or of chips if `machine_type` is empty.
    """

    name: str
    zone: str
    generation: str
    machine_type: str
    count: int
    in_use: int | None  # None if not reported
    state: str  # `READY`; of a future one `FULFILLED`, `PENDING_APPROVAL`, …
    is_future: bool
    start: str = ""  # of a future one
    end: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether TPUs can be created from it now."""
        return not self.is_future and self.state == ACTIVE

    def __str__(self) -> str:
        unit = self.machine_type or f"{self.generation} chips"
        used = f", {self.in_use} in use" if self.in_use is not None else ""
        period = [f"from {self.start}"] if self.start else []
        period += [f"until {self.end}"] if self.end else []
        kind = "Future reservation" if self.is_future else "Reservation"
        return (
            f"{kind} {self.name} in {self.zone}: {self.count} {unit}{used}, {self.state}"
            f"{', ' if period else ''}{' '.join(period)}."
        )


def reservation_of(row: Mapping[str, Any], *, is_future: bool = False) -> TpuReservation | None:
    """A reservation or future reservation from its JSON; None if it has no TPUs."""
    specific = row.get("specificSkuProperties" if is_future else "specificReservation", {})
    status = row.get("status", "")
    machine_type = specific.get("instanceProperties", {}).get("machineType", "").rpartition("/")[2]
    chips = row.get("aggregateReservation", {})
    if generation := _generation_of_machine(machine_type):
        count = int(specific.get("totalCount" if is_future else "count", 0))
        used = None if is_future else int(specific.get("inUseCount", 0))
    elif generation := _GENERATIONS.get(chips.get("vmFamily", "").rpartition("_")[2], ""):
        machine_type = ""
        count = sum(_chips(chips.get("reservedResources", ())))
        used = None if is_future else sum(_chips(chips.get("inUseResources", ())))
    else:
        return None
    window = row.get("timeWindow", {})
    return TpuReservation(
        name=row["name"],
        zone=row.get("zone", "").rpartition("/")[2],
        generation=generation,
        machine_type=machine_type,
        count=count,
        in_use=used,
        state=status.get("procurementStatus", "") if is_future else status,
        is_future=is_future,
        start=window.get("startTime", ""),
        end=window.get("endTime", "") if is_future else row.get("deleteAtTime", ""),
    )


def _generation_of_machine(machine_type: str) -> str:
    for generation, family in TPU_MACHINE_FAMILIES.items():
        if machine_type.startswith(f"{family}-"):
            return generation
    return ""


def _chips(resources: Any) -> Iterator[int]:
    for resource in resources:
        yield int(resource.get("accelerator", {}).get("acceleratorCount", 0))
