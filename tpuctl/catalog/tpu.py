"""TPU types, zones and runtimes, as published or reported; the tables are in `tpu.json`.

A zone listed there does not mean capacity. Spot prices float. `tpuctl types --live` asks the API.
JSON, since many commands read it: parsing TOML would take 20 ms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = [
    "ALLOWLIST_ZONES",
    "AcceleratorType",
    "NodeVersion",
    "Runtime",
    "accelerator_type",
    "accelerator_types",
    "base_runtime",
    "data",
    "node_cidr_prefix",
    "node_version",
    "node_versions",
    "read_date",
    "region_of",
    "regions",
    "runtime",
    "runtime_for",
    "runtimes",
    "unlisted_runtime",
    "zones",
]


@dataclass(frozen=True)
class AcceleratorType:
    """A TPU type as `acceleratorTypes` names it."""

    name: str
    generation: str
    chips: int
    cores: int  # TensorCores
    workers: int  # machines
    topology: str  # "2x2"; empty if not published
    price_class: str
    zones: tuple[str, ...]
    compute_zones: tuple[str, ...]  # more zones, at Compute Engine
    devices: int  # as JAX and TensorFlow count them: replicas of a TPUStrategy
    hbm_gb_per_chip: int
    in_tpu_api: bool  # False: offered only through Compute Engine or GKE


# Zones that only projects on Google's allowlist may use; a project of the TPU Research Cloud is on
# it. Others get "Permission denied on 'locations/us-central2-b'" (reports of 2025 and 2026).
ALLOWLIST_ZONES = frozenset({"us-central2-b"})
# Of the Cloud TPU API's images, which are Ubuntu 22.04.
_PYTHON = "3.10"
_RUNTIME_NAME = re.compile(r"[a-z](?:[-.a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True)
class Runtime:
    """A software version of TPU VMs."""

    version: str
    tensorflow: str | None  # None for the base runtimes
    generations: tuple[str, ...]
    hosts: str  # "one", "many" or "any"
    python: str | None = _PYTHON  # of its image; None if it is unknown

    def fits(self, accelerator: AcceleratorType) -> bool:
        """Whether nodes of this type support this runtime."""
        hosts = "one" if accelerator.workers == 1 else "many"
        return accelerator.generation in self.generations and self.hosts in (hosts, "any")


@dataclass(frozen=True)
class NodeVersion:
    """A software version of TPU nodes (API v1), as `tensorflowVersions` lists it."""

    version: str  # "2.12.0", "pytorch-1.13"
    tensorflow: str | None
    pytorch: str | None


@cache
def data() -> dict[str, Any]:
    """The tables, read once."""
    tables: dict[str, Any] = json.loads(Path(__file__).with_name("tpu.json").read_text("utf-8"))
    return tables


def read_date() -> str:
    """When the figures were read: `mid-2026`."""
    return str(data()["read"])


@cache
def accelerator_types() -> Mapping[str, AcceleratorType]:
    """All types by name, by generation and then by size."""
    table = data()
    types = {}
    for generation, rows in table["types"].items():
        facts = table["generations"][generation]
        for name, chips, cores, workers, topology, price_class in rows:
            types[name] = AcceleratorType(
                name=name,
                generation=generation,
                chips=chips,
                cores=cores,
                workers=workers,
                topology=topology,
                price_class=price_class,
                zones=tuple(table["prices"][price_class]),
                compute_zones=tuple(table["compute_zones"].get(generation, ())),
                devices=chips * facts["devices_per_chip"],
                hbm_gb_per_chip=facts["hbm_gb_per_chip"],
                in_tpu_api=facts["tpu_api"] and name not in table["not_in_tpu_api"],
            )
    return types


def accelerator_type(name: str) -> AcceleratorType | None:
    return accelerator_types().get(name)


@cache
def zones() -> tuple[str, ...]:
    """Every zone that offers TPUs."""
    return tuple(sorted({zone for prices in data()["prices"].values() for zone in prices}))


def regions() -> list[str]:
    """Every region that offers TPUs."""
    return sorted({region_of(zone) for zone in zones()})


def region_of(zone: str) -> str:
    """The region of a zone: `europe-west4` for `europe-west4-a`."""
    return zone.rpartition("-")[0]


@cache
def runtimes() -> tuple[Runtime, ...]:
    """All runtimes, newest TensorFlow first, base runtimes last."""
    return tuple(
        Runtime(
            version=row["version"],
            tensorflow=row.get("tensorflow"),
            generations=tuple(row["generations"]),
            hosts=row["hosts"],
        )
        for row in data()["runtimes"]
    )


def runtime(version: str) -> Runtime | None:
    return next((candidate for candidate in runtimes() if candidate.version == version), None)


def unlisted_runtime(version: str) -> Runtime | None:
    """What can be said of a runtime that no table here has, by its name; None if it is no name.

    Google offers more than it documents: whether this one exists, only Google knows.
    """
    if not _RUNTIME_NAME.fullmatch(version):
        return None
    tensorflow = re.search(r"-tf-(\d+\.\d+\.\d+)", version)
    return Runtime(
        version=version,
        tensorflow=tensorflow[1] if tensorflow is not None else None,
        generations=tuple(data()["generations"]),
        hosts="any",
    )


def runtime_for(accelerator: AcceleratorType) -> Runtime | None:
    """The newest TensorFlow runtime that fits the type, else its base runtime, else None."""
    return next((candidate for candidate in runtimes() if candidate.fits(accelerator)), None)


def base_runtime(accelerator: AcceleratorType) -> Runtime | None:
    """The runtime without TensorFlow that fits the type, for JAX and PyTorch; None if none does."""
    fitting = (
        entry for entry in runtimes() if entry.tensorflow is None and entry.fits(accelerator)
    )
    return next(fitting, None)


@cache
def node_versions() -> tuple[NodeVersion, ...]:
    """All software versions of TPU nodes, newest TensorFlow first."""
    return tuple(
        NodeVersion(row["version"], row.get("tensorflow"), row.get("pytorch"))
        for row in data()["nodes"]["versions"]
    )


def node_version(version: str) -> NodeVersion | None:
    """The version of exactly this name: `2.12.0` and `2.2` exist, `2.12` does not."""
    return next((candidate for candidate in node_versions() if candidate.version == version), None)


def node_cidr_prefix(accelerator: AcceleratorType) -> int:
    """The prefix length of the address range that a TPU node of this type needs.

    For types that TPU nodes never supported (only v2 and v3 do), that of the smallest.
    """
    prefix: int = data()["nodes"]["cidr_prefixes"].get(accelerator.name, 29)
    return prefix
