"""The collection of accelerator types: the TPU chips of a zone's machine types.

GPUs are not emulated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tpuctl.emulator.compute.core.collection import FixedCollection, Row
from tpuctl.emulator.compute.offerings.tpu_machine_types import tpu_shapes


class AcceleratorTypes(FixedCollection):
    """Chips, as `guestAcceleratorType` of machine types names them."""

    message, plural, field = "AcceleratorType", "acceleratorTypes", "accelerator_type"
    scope = "zones"

    def find(self, name: str) -> Row | None:
        """The description is a guess."""
        _, _, _, zone, _, kind = name.split("/")
        chips = _chips(zone)
        if kind not in chips:
            return None
        return {
            "kind": "compute#acceleratorType",
            "id": str(int(hashlib.sha256(kind.encode()).hexdigest()[:7], 16)),
            "name": kind,
            "description": kind,
            "maximumCardsPerInstance": chips[kind],
        }

    def names_in(self, zone: str) -> Sequence[str]:
        return sorted(_chips(zone))


def _chips(zone: str) -> dict[str, int]:
    """By name, the most chips of one machine."""
    chips: dict[str, int] = {}
    for shape in tpu_shapes().values():
        if zone in shape.zones:
            kind = shape.guest_accelerator
            chips[kind] = max(chips.get(kind, 0), shape.accelerator.chips)
    return chips
