"""Machine types with TPU chips, and what Compute Engine requires of instances of them.

Sources: docs.cloud.google.com/compute/docs/tpus/tpu-machines; vCPUs, memory, accelerator names and
the forms with `-tpu` as `gcloud compute machine-types list` answered in 2026-08 (xbill9/gemma4-dev,
HARDWARE.md); host memory of v6e and TPU7x from docs.cloud.google.com/kubernetes-engine/docs/
concepts/plan-tpus.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tpuctl import catalog

__all__ = ["TpuShape", "tpu_shapes"]


@dataclass(frozen=True)
class TpuShape:
    """The TPU part of a machine type. `accelerator` is its `guestAcceleratorType`."""

    generation: str
    chips: int
    cpus: int
    memory_gb: int
    accelerator: str
    zones: frozenset[str]
    topology: str  # of the machine's own chips
    is_sold: bool = True  # as an instance, rather than as a node of GKE alone

    def accelerator_type(self, hosts: int = 1) -> str:
        """The Cloud TPU API's name of a slice of so many machines, as in "v6e-16"."""
        kinds = catalog.accelerator_types().values()
        kind = next(kind for kind in kinds if kind.generation == self.generation)
        prefix, _, size = kind.name.rpartition("-")
        return f"{prefix}-{self.chips * hosts * int(size) // kind.chips}"


@dataclass(frozen=True)
class _Family:
    """`sizes`: chips to vCPUs, GB of memory, and topology. `bare`: sizes without `-tpu`, too."""

    generation: str
    accelerator: str
    sizes: Mapping[int, tuple[int, int, str]]
    bare: tuple[int, ...]
    is_sold: bool = True


_FAMILIES: Mapping[str, _Family] = {
    "ct5lp-hightpu": _Family(
        "v5e",
        "ct5lp",
        {1: (24, 48, "1x1"), 4: (112, 192, "2x2"), 8: (224, 384, "2x4")},
        bare=(1, 4, 8),
        is_sold=False,
    ),
    "ct5p-hightpu": _Family(
        "v5p",
        "ct5p",
        {1: (52, 112, "1x1x1"), 2: (104, 224, "1x2x1"), 4: (208, 448, "2x2x1")},
        bare=(4,),
    ),
    "ct6e-standard": _Family(
        "v6e",
        "ct6e",
        {1: (44, 176, "1x1"), 4: (180, 720, "2x2"), 8: (180, 1440, "2x4")},
        bare=(1, 4, 8),
    ),
    "tpu7x-standard": _Family("tpu7x", "tpu7x", {4: (224, 960, "2x2x1")}, bare=(4,)),
}


@cache
def tpu_shapes() -> Mapping[str, TpuShape]:
    """By machine type."""
    shapes = {}
    for prefix, family in _FAMILIES.items():
        zones = frozenset(
            zone
            for kind in catalog.accelerator_types().values()
            if kind.generation == family.generation
            for zone in kind.zones
        )
        for chips, (cpus, memory, topology) in family.sizes.items():
            names = {f"{prefix}-{chips}t": family.accelerator} if chips in family.bare else {}
            if family.is_sold:  # those of GKE alone have no such form
                names[f"{prefix}-{chips}t-tpu"] = f"tpu-{family.generation}"
            for name, accelerator in names.items():
                shapes[name] = TpuShape(
                    *(family.generation, chips, cpus, memory, accelerator, zones, topology),
                    is_sold=family.is_sold,
                )
    return shapes
