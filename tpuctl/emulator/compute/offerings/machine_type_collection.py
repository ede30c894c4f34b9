"""The collection of machine types, the same in every project."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tpuctl.emulator.compute.core.collection import FixedCollection, Row
from tpuctl.emulator.compute.offerings.machine_types import (
    MachineType,
    machine_type,
    machine_types,
)


class MachineTypes(FixedCollection):
    """Machine types by zone."""

    message, plural, field = "MachineType", "machineTypes", "machine_type"
    scope = "zones"

    def find(self, name: str) -> Row | None:
        zone, kind = name.split("/")[3], machine_type(name.rpartition("/")[2])
        return None if kind is None or not kind.is_in(zone) else _row(kind)

    def names_in(self, zone: str) -> Sequence[str]:
        return [name for name, kind in machine_types().items() if kind.is_in(zone)]

    def show(self, name: str, row: Row) -> Row:
        return {**super().show(name, row), "zone": name.split("/")[3]}


def _row(kind: MachineType) -> Row:
    row: Row = {
        "kind": "compute#machineType",
        "id": str(int(hashlib.sha256(kind.name.encode()).hexdigest()[:7], 16)),
        "name": kind.name,
        "description": f"{kind.cpus} vCPUs, {kind.memory_mb / 1024:g} GB RAM",
        "guestCpus": kind.cpus,
        "memoryMb": kind.memory_mb,
        "isSharedCpu": kind.is_shared,
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
        "architecture": "X86_64",
    }
    if kind.tpu is not None:
        chips = {
            "guestAcceleratorType": kind.tpu.guest_accelerator,
            "guestAcceleratorCount": kind.tpu.accelerator.chips,
        }
        row["accelerators"] = [chips]
    return row
