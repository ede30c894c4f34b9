"""Machine types of the common Compute Engine families, and of those with TPU chips."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tpuctl.emulator.compute.offerings.tpu_machine_types import TpuShape, tpu_shapes


@dataclass(frozen=True)
class MachineType:
    """A machine type and its CPU quota metric."""

    name: str
    cpus: int
    memory_mb: int
    is_shared: bool = False
    tpu: TpuShape | None = None

    def is_in(self, zone: str) -> bool:
        """Whether a zone offers it: every zone has the common families."""
        return self.tpu is None or zone in self.tpu.zones

    @property
    def cpu_quota(self) -> str:
        """N1 and E2 share a quota; other families have their own (docs: "CPU quota").

        Of machines with TPUs the chips are counted instead.
        """
        family = self.name.partition("-")[0]
        prefix = family.upper() if family in ("n2", "n2d", "c2", "c2d") else ""
        return f"{prefix}_CPUS" if prefix else "CPUS"


# By series: MB of memory per vCPU, and vCPU counts
# (cloud.google.com/compute/docs/machine-resource).
_FAMILIES: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "n1-standard": (3840, (1, 2, 4, 8, 16, 32, 64, 96)),
    "n1-highmem": (6656, (2, 4, 8, 16, 32, 64, 96)),
    "n1-highcpu": (922, (2, 4, 8, 16, 32, 64, 96)),
    "n2-standard": (4096, (2, 4, 8, 16, 32, 48, 64, 80, 96, 128)),
    "n2-highmem": (8192, (2, 4, 8, 16, 32, 48, 64, 80, 96)),
    "n2-highcpu": (1024, (2, 4, 8, 16, 32, 48, 64, 80, 96)),
    "n2d-standard": (4096, (2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 224)),
    "n2d-highmem": (8192, (2, 4, 8, 16, 32, 48, 64, 80, 96)),
    "n2d-highcpu": (1024, (2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 224)),
    "e2-standard": (4096, (2, 4, 8, 16, 32)),
    "e2-highmem": (8192, (2, 4, 8, 16)),
    "e2-highcpu": (1024, (2, 4, 8, 16, 32)),
    "c2-standard": (4096, (4, 8, 16, 30, 60)),
}
_SHARED: Mapping[str, tuple[int, int]] = {
    "e2-micro": (2, 1024),
    "e2-small": (2, 2048),
    "e2-medium": (2, 4096),
    "f1-micro": (1, 614),
    "g1-small": (1, 1740),
}
# With extended memory: -ext; of a shared core (docs.cloud.google.com/compute/docs/instances/
# creating-instance-with-custom-machine-type): e2-custom-micro-1024.
_CUSTOM = re.compile(
    r"(?:(?:n1-|n2-|n2d-|e2-)?custom-(\d{1,3})|e2-custom-(?:micro|small|medium))-(\d{3,7})(-ext)?"
)
_SHARED_CPUS = 2


@cache
def machine_types() -> Mapping[str, MachineType]:
    """All machine types by name, without custom ones."""
    types = {
        f"{kind}-{cpus}": MachineType(f"{kind}-{cpus}", cpus, cpus * memory)
        for kind, (memory, counts) in _FAMILIES.items()
        for cpus in counts
    }
    for name, (cpus, memory) in _SHARED.items():
        types[name] = MachineType(name, cpus, memory, is_shared=True)
    for name, tpu in tpu_shapes().items():
        types[name] = MachineType(name, tpu.cpus, tpu.memory_gb * 1024, tpu=tpu)
    return dict(sorted(types.items()))


def machine_type(name: str) -> MachineType | None:
    """The machine type of that name, including custom ones."""
    custom = _CUSTOM.fullmatch(name)
    if custom is not None:
        is_shared = custom[1] is None
        cpus = _SHARED_CPUS if is_shared else int(custom[1])
        return MachineType(name, cpus, int(custom[2]), is_shared)
    return machine_types().get(name)
