"""TPU types as Compute Engine sells them: machines with TPU chips, one or several to a slice.

Sources:

- machine types, chips, vCPUs and memory: docs.cloud.google.com/compute/docs/tpus/tpu-machines,
  and /tpu/docs/v5p, v6e, tpu7x (read 2026-11). Those of v5p with one and two chips: the project's
  `machineTypes` on 2026-08-10 (xbill9/gemma4-dev, ACCELERATORS.md). GKE calls them
  `ct5p-hightpu-1t` and `-2t`, and has `tpu7x-standard-1t`, which Compute Engine does not document.
- images: docs.cloud.google.com/compute/docs/images/os-details, accelerator images (read 2026-11);
  that of TPU7x also in skypilot-org/skypilot, sky/clouds/gcp.py. Their Python is Ubuntu's.
- boot disks: docs.cloud.google.com/tpu/docs/attach-durable-block-storage (read 2026-11);
  for TPU7x, the examples of GoogleCloudPlatform/cluster-toolkit, gke-tpu-7x
- topologies: the pages of each generation, and the rule of GKE's plan-tpus: three ascending
  numbers that are multiples of four from one cube (4x4x4) on
- zones: the same as at the Cloud TPU API, except where both were asked on 2026-08-10 (as above)
- what is announced: Google Cloud Next, 2026-04-22
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from tpuctl.catalog.flex_start import CALENDAR, FLEX_START
from tpuctl.catalog.tpu import AcceleratorType, accelerator_types

__all__ = [
    "APIS",
    "API_NAMES",
    "TPU_MACHINE_FAMILIES",
    "AnnouncedTpu",
    "Api",
    "Architecture",
    "TpuMachine",
    "TpuMachineType",
    "announced_tpu",
    "apis_of",
    "calendar_zones",
    "flex_start_zones",
    "host_architecture",
    "is_tpu_machine",
    "topologies_of",
    "tpu_machine",
    "tpu_machine_type",
    "tpu_machine_types",
    "zones_of",
]

Api = Literal["tpu", "compute"]
"""Who sells a TPU: the Cloud TPU API, or Compute Engine."""
APIS: tuple[Api, ...] = get_args(Api)
API_NAMES: Mapping[Api, str] = {"tpu": "the Cloud TPU API", "compute": "Compute Engine"}

Architecture = Literal["x86_64", "aarch64"]
"""Of a host's processors, as `platform.machine()` names it on Linux."""

# The prefix of machine types, by generation.
TPU_MACHINE_FAMILIES: Mapping[str, str] = {
    "v5p": "ct5p-hightpu",
    "v6e": "ct6e-standard",
    "tpu7x": "tpu7x-standard",
}
IMAGE_PROJECT = "ubuntu-os-accelerator-images"
# Image families by generation, and the Python of each.
IMAGES: Mapping[str, tuple[str, str]] = {
    "v5p": ("ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", "3.10"),
    "v6e": ("ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", "3.10"),
    "tpu7x": ("ubuntu-accel-2404-amd64-tpu-tpu7x", "3.12"),
}
# Types of boot disks by generation, the default first.
BOOT_DISKS: Mapping[str, tuple[str, ...]] = {
    "v5p": ("pd-balanced",),
    "v6e": ("hyperdisk-balanced",),
    "tpu7x": ("hyperdisk-balanced",),
}
# By machine type: generation, chips, vCPUs, GB of memory, `guestAcceleratorType`.
_MACHINE_TYPES: Mapping[str, tuple[str, int, int, int, str]] = {
    "ct5p-hightpu-1t-tpu": ("v5p", 1, 52, 112, "tpu-v5p"),
    "ct5p-hightpu-2t-tpu": ("v5p", 2, 104, 224, "tpu-v5p"),
    "ct5p-hightpu-4t": ("v5p", 4, 208, 448, "ct5p"),
    "ct6e-standard-1t": ("v6e", 1, 44, 176, "ct6e"),
    "ct6e-standard-4t": ("v6e", 4, 180, 720, "ct6e"),
    "ct6e-standard-8t": ("v6e", 8, 180, 1440, "ct6e"),
    "tpu7x-standard-4t": ("tpu7x", 4, 224, 960, "tpu7x"),
}
_CHIPS_PER_HOST = 4  # of the machines of a slice of several hosts
_CUBE = 4  # chips in each direction
_TORUS_GENERATIONS = ("v5p", "tpu7x")  # of those with machine types


@dataclass(frozen=True)
class TpuMachineType:
    """A machine type with TPU chips, as `machineTypes` of Compute Engine names it."""

    name: str
    generation: str
    chips: int
    vcpus: int
    memory_gb: int
    guest_accelerator: str  # `guestAcceleratorType`
    architecture: Architecture = "x86_64"

    @property
    def image(self) -> str:
        """The image that has drivers for it: PROJECT/FAMILY."""
        return f"{IMAGE_PROJECT}/{IMAGES[self.generation][0]}"

    @property
    def python(self) -> str:
        """The Python version of the image."""
        return IMAGES[self.generation][1]

    @property
    def boot_disks(self) -> tuple[str, ...]:
        """The types of boot disks that it supports, the default first."""
        return BOOT_DISKS[self.generation]


@dataclass(frozen=True)
class TpuMachine:
    """How Compute Engine sells a TPU type: `hosts` machines of one type."""

    machine_type: str
    chips: int  # of one machine
    hosts: int  # machines of a slice
    topology: str  # of the slice
    image: str  # PROJECT/FAMILY
    python: str  # of the image
    boot_disks: tuple[str, ...]  # types of boot disks, the default first
    architecture: Architecture = "x86_64"


@dataclass(frozen=True)
class AnnouncedTpu:
    """A generation that Google has announced and does not sell yet."""

    name: str
    architecture: Architecture
    announced: str  # date
    remark: str

    def __str__(self) -> str:
        return (
            f"{self.name} was announced on {self.announced}, {self.remark}. It is not sold yet: no "
            f"API lists a type of it. Its hosts will have Arm processors ({self.architecture})"
        )


_ANNOUNCED: Mapping[str, AnnouncedTpu] = {
    "tpu8t": AnnouncedTpu(
        "TPU 8t", "aarch64", "2026-04-22", "for training, in superpods of 9,600 chips"
    ),
    "tpu8i": AnnouncedTpu(
        "TPU 8i", "aarch64", "2026-04-22", "for inference, with 288 GB of HBM per chip"
    ),
    "tpu8": AnnouncedTpu(
        "TPU 8", "aarch64", "2026-04-22", "as TPU 8t for training and TPU 8i for inference"
    ),
}


@cache
def tpu_machine_types() -> Mapping[str, TpuMachineType]:
    """The machine types with TPU chips that Compute Engine documents, by name."""
    return {name: TpuMachineType(name, *row) for name, row in _MACHINE_TYPES.items()}


def tpu_machine_type(name: str) -> TpuMachineType | None:
    return tpu_machine_types().get(name)


def is_tpu_machine(machine_type: str) -> bool:
    """Whether a machine type of Compute Engine has TPU chips."""
    return machine_type.startswith(tuple(f"{name}-" for name in TPU_MACHINE_FAMILIES.values()))


def apis_of(accelerator: AcceleratorType) -> tuple[Api, ...]:
    """The APIs that sell a type, the Cloud TPU API first."""
    return (
        *(("tpu",) if accelerator.in_tpu_api else ()),
        *(("compute",) if tpu_machine(accelerator) is not None else ()),
    )


def zones_of(accelerator: AcceleratorType, api: Api | None = None) -> tuple[str, ...]:
    """The zones where an API offers a type, or any API; empty if it does not sell it."""
    if api is not None and api not in apis_of(accelerator):
        return ()
    return (*accelerator.zones, *(accelerator.compute_zones if api != "tpu" else ()))


def flex_start_zones(accelerator: AcceleratorType, api: Api | None = None) -> tuple[str, ...]:
    """Zones that are known to accept flex-start requests for this type, at an API or at any."""
    zones = {
        zone
        for seller in apis_of(accelerator)
        if api in (None, seller)
        for zone in FLEX_START[seller].get(accelerator.generation, ())
    }
    return tuple(sorted(zones.intersection(zones_of(accelerator, api))))


def calendar_zones(accelerator: AcceleratorType) -> tuple[str, ...]:
    """Zones where capacity of this type can be reserved for a period: a future reservation in
    calendar mode, which Compute Engine takes and TPUs of both APIs can use."""
    zones = CALENDAR.get(accelerator.generation, ())
    return tuple(zone for zone in zones if zone in zones_of(accelerator))


def tpu_machine(accelerator: AcceleratorType, topology: str | None = None) -> TpuMachine | None:
    """The machines of a slice of this type; None if Compute Engine does not sell it."""
    chips = accelerator.chips if accelerator.workers == 1 else _CHIPS_PER_HOST
    for machine_type in tpu_machine_types().values():
        if (machine_type.generation, machine_type.chips) == (accelerator.generation, chips):
            return TpuMachine(
                machine_type=machine_type.name,
                chips=chips,
                hosts=accelerator.workers,
                topology=topology or accelerator.topology,
                image=machine_type.image,
                python=machine_type.python,
                boot_disks=machine_type.boot_disks,
                architecture=machine_type.architecture,
            )
    return None


def host_architecture(accelerator: AcceleratorType) -> Architecture:
    """Of the machines with this type. Those of the Cloud TPU API are all x86_64."""
    machine = tpu_machine(accelerator)
    return machine.architecture if machine is not None else "x86_64"


def topologies_of(accelerator: AcceleratorType) -> tuple[str, ...]:
    """The topologies that a slice of this type may have, the default first."""
    shapes = dict.fromkeys(
        other.topology
        for other in (accelerator, *accelerator_types().values())
        if (other.generation, other.chips) == (accelerator.generation, accelerator.chips)
    )
    if accelerator.generation in _TORUS_GENERATIONS:
        shapes.update(dict.fromkeys(_cubes(accelerator.chips)))
    return tuple(shape for shape in shapes if shape)


def announced_tpu(type_name: str) -> AnnouncedTpu | None:
    """The announced generation that a type is named after, as `tpu8t-16`, `v8i-8` or `v8-32`."""
    generation = re.sub("^(tpu-?)?v?(?=8)", "tpu", type_name.lower()).partition("-")[0]
    return _ANNOUNCED.get(generation)


def _cubes(chips: int) -> Iterator[str]:
    """Topologies of whole cubes, in ascending numbers."""
    cubes = chips // _CUBE**3 if chips % _CUBE**3 == 0 else 0
    for x in range(1, cubes + 1):
        for y in range(x, cubes // x + 1):
            z, rest = divmod(cubes, x * y)
            if not rest and z >= y:
                yield f"{_CUBE * x}x{_CUBE * y}x{_CUBE * z}"
