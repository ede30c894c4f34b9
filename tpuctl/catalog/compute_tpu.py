"""TPU types as Compute Engine sells them: machines with TPU chips, one or several to a slice.

Sources: docs.cloud.google.com/compute/docs/tpus (tpu-machines, create-tpu-vm-instance,
create-tpu-mig-multi-host-slice; read 2026-11).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tpuctl.catalog.tpu import AcceleratorType

__all__ = [
    "TPU_MACHINE_FAMILIES",
    "Api",
    "Architecture",
    "TpuMachine",
    "apis_of",
    "is_tpu_machine",
    "tpu_machine",
]

Api = Literal["tpu", "compute"]
"""Who sells a TPU: the Cloud TPU API, or Compute Engine."""

Architecture = Literal["x86_64", "aarch64"]
"""Of a host's processors, as `platform.machine()` names it on Linux."""

# By generation: the prefix of machine types, and the chips of the machine types with one host.
TPU_MACHINE_FAMILIES: Mapping[str, str] = {
    "v5p": "ct5p-hightpu",
    "v6e": "ct6e-standard",
    "tpu7x": "tpu7x-standard",
}
_CHIPS_PER_HOST = 4  # of the machines of a slice of several hosts
IMAGE_PROJECT = "ubuntu-os-accelerator-images"


@dataclass(frozen=True)
class TpuMachine:
    """How Compute Engine sells a TPU type: `hosts` machines of one type."""

    machine_type: str
    chips: int  # of one machine
    hosts: int  # machines of a slice
    topology: str  # of the slice
    image: str  # PROJECT/FAMILY
    architecture: Architecture = "x86_64"


def apis_of(accelerator: AcceleratorType) -> tuple[Api, ...]:
    """The APIs that sell a type, the Cloud TPU API first."""
    return (
        *(("tpu",) if accelerator.in_tpu_api else ()),
        *(("compute",) if tpu_machine(accelerator) is not None else ()),
    )


def tpu_machine(accelerator: AcceleratorType, topology: str | None = None) -> TpuMachine | None:
    """The machines of a slice of this type; None if Compute Engine does not sell it."""
    family = TPU_MACHINE_FAMILIES.get(accelerator.generation)
    if family is None:
        return None
    chips = accelerator.chips if accelerator.workers == 1 else _CHIPS_PER_HOST
    version = "tpu7x" if accelerator.generation == "tpu7x" else "v5e-v5p-v6e"
    return TpuMachine(
        machine_type=f"{family}-{chips}t",
        chips=chips,
        hosts=accelerator.workers,
        topology=topology or accelerator.topology,
        image=f"{IMAGE_PROJECT}/ubuntu-accel-2204-amd64-tpu-{version}",
    )


def is_tpu_machine(machine_type: str) -> bool:
    """Whether a machine type of Compute Engine has TPU chips."""
    return machine_type.startswith(tuple(f"{name}-" for name in TPU_MACHINE_FAMILIES.values()))
