"""Where a TPU may be created: zones, and the APIs that sell it there, in order."""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.catalog import (
    API_NAMES,
    AcceleratorType,
    Api,
    apis_of,
    flex_start_zones,
    node_price,
    zones,
    zones_of,
)
from tpuctl.model.stack.schema import StackFile


@dataclass(frozen=True)
class Candidate:
    """Where a TPU may be created: a zone, and the API that sells it there."""

    zone: str
    api: Api = "tpu"

    @property
    def key(self) -> str:
        """`us-east5-a`, or `us-east5-a/compute`."""
        return self.zone if self.api == "tpu" else f"{self.zone}/{self.api}"

    def __str__(self) -> str:
        """`us-east5-a`, or `us-east5-a through Compute Engine`."""
        return self.zone if self.api == "tpu" else f"{self.zone} through {API_NAMES[self.api]}"


def candidates_of(file: StackFile, accelerator: AcceleratorType) -> tuple[Candidate, ...]:
    """Where to try to create the TPU, in order: all zones of the first API, then of the second.

    Prices are the same at both; the Cloud TPU API comes first, whose images have more software.
    """
    apis = sellers_of(file, accelerator)
    candidates = [
        Candidate(zone, api) for api in apis for zone in _zones_at(file, accelerator, api)
    ]
    if file.tpu.api == "auto":
        candidates = [
            candidate for candidate in candidates if _may_offer(file, accelerator, candidate)
        ]
    return tuple(candidates) or (Candidate(accelerator.zones[0], apis[0]),)


def _may_offer(file: StackFile, accelerator: AcceleratorType, candidate: Candidate) -> bool:
    """Whether to try a candidate that the stack file does not insist on."""
    tpu = file.tpu
    if candidate.api == "compute" and tpu.capacity == "reserved" and tpu.reservation is None:
        return False  # it must be named
    return candidate.zone in zones_of(accelerator, candidate.api)


def sellers_of(file: StackFile, accelerator: AcceleratorType) -> tuple[Api, ...]:
    """The APIs that may sell a stack file's TPU, in order."""
    offered = apis_of(accelerator) or ("tpu",)
    if file.tpu.kind == "node":
        return ("tpu",)
    return offered if file.tpu.api == "auto" else (file.tpu.api or offered[0],)


def _zones_at(file: StackFile, accelerator: AcceleratorType, api: Api) -> tuple[str, ...]:
    """The configured zones, else the cheapest zone that offers the type with this capacity.

    Unknown zones are left out: nothing can exist there.
    """
    if requested := tuple(zone for zone in file.tpu.zones if zone in zones()):
        return requested
    capacity = file.tpu.capacity
    offering = flex_start_zones(accelerator, api) if capacity == "flex-start" else ()

    def price(zone: str) -> tuple[float, str]:
        zone_price = node_price(accelerator, zone, capacity=capacity)
        return (zone_price.per_hour if zone_price else float("inf"), zone)

    offering = offering or zones_of(accelerator, api) or accelerator.zones
    return (min(offering, key=price),)
