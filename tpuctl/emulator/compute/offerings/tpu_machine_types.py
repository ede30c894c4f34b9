"""The TPU part of machine types: those of the catalog, and those that only GKE may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tpuctl import catalog

# Listed with vCPUs and GB of memory in every zone with v5e, and refused for instances: public
# reports of 2026-08 (xbill9/gemma4-dev).
_GKE_ONLY: Mapping[str, tuple[str, int, int]] = {
    "ct5lp-hightpu-1t": ("v5litepod-1", 24, 48),
    "ct5lp-hightpu-4t": ("v5litepod-4", 112, 192),
    "ct5lp-hightpu-8t": ("v5litepod-8", 224, 384),
}


@dataclass(frozen=True)
class TpuShape:
    """The chips of a machine type and where it is offered."""

    accelerator: catalog.AcceleratorType  # a slice of this one machine
    cpus: int
    memory_gb: int
    guest_accelerator: str  # as `machineTypes` calls the chips
    zones: frozenset[str]
    disk_types: tuple[str, ...]  # of boot disks
    is_sold: bool = True  # as instances

    def slice_type(self, machines: int) -> str:
        """The accelerator type of a slice of so many machines; empty if there is none.

        One of as many chips on fewer machines counts, too: v6e-8 as two machines of four.
        """
        size = (self.accelerator.generation, self.accelerator.chips * machines)
        kinds = [
            kind
            for kind in catalog.accelerator_types().values()
            if (kind.generation, kind.chips) == size
        ]
        kinds.sort(key=lambda kind: kind.workers != machines)
        return kinds[0].name if kinds else ""


@cache
def tpu_shapes() -> Mapping[str, TpuShape]:
    """By machine type."""
    shapes = {}
    for name, kind in catalog.tpu_machine_types().items():
        accelerator = next(
            accelerator
            for accelerator in catalog.accelerator_types().values()
            if (accelerator.generation, accelerator.chips, accelerator.workers)
            == (kind.generation, kind.chips, 1)
        )
        shapes[name] = TpuShape(
            accelerator,
            kind.vcpus,
            kind.memory_gb,
            kind.guest_accelerator,
            frozenset(catalog.zones_of(accelerator, "compute")),
            kind.boot_disks,
        )
    for name, (type_name, cpus, memory) in _GKE_ONLY.items():
        accelerator = catalog.accelerator_types()[type_name]
        zones = frozenset(accelerator.zones)
        shapes[name] = TpuShape(accelerator, cpus, memory, "ct5lp", zones, (), is_sold=False)
    return shapes
