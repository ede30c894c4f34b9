"""Where a TPU may be created: alternatives, zones, and the APIs that sell it there, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tpuctl.catalog import (
    API_NAMES,
    AcceleratorType,
    Api,
    accelerator_type,
    apis_of,
    flex_start_zones,
    node_price,
    zones,
    zones_of,
)
from tpuctl.model.stack.schema import Alternative, StackFile, TpuSection

PLACEHOLDER_TYPE = "v2-8"
SPOT = ("spot", "preemptible")
NULLABLE = ("topology", "reservation", "queue", "api")  # keys that null sets, too


@dataclass(frozen=True)
class Candidate:
    """Where a TPU may be created: a zone, and the API that sells it there."""

    zone: str
    api: Api = "tpu"
    alternative: int = 0  # of the stack's alternatives
    label: str = field(default="", compare=False)  # what it is, if the stack has several

    @property
    def key(self) -> str:
        """`us-east5-a`, or `us-east5-a/compute`, or `spot v6e-8/us-east5-a`."""
        parts = (self.label, self.zone, "" if self.api == "tpu" else self.api)
        return "/".join(filter(None, parts))

    @property
    def phrase(self) -> str:
        """`in us-east5-a`, or `spot v6e-8 in us-east5-a`."""
        return str(self) if self.label else f"in {self}"

    def __str__(self) -> str:
        """`us-east5-a`, `us-east5-a through Compute Engine`, or `spot v6e-8 in us-east5-a`."""
        place = f"{self.label} in {self.zone}" if self.label else self.zone
        return place if self.api == "tpu" else f"{place} through {API_NAMES[self.api]}"


def accelerator_of(tpu: TpuSection) -> AcceleratorType:
    """The TPU's type; a placeholder for an unknown one, whose stack can only be inspected."""
    accelerator = accelerator_type(tpu.type) or accelerator_type(PLACEHOLDER_TYPE)
    assert accelerator is not None
    return accelerator


def alternatives_of(file: StackFile) -> tuple[TpuSection, ...]:
    """The TPUs that a stack file allows, in order; a single one without `tpu.any_of`."""
    return tuple(_merged(file.tpu, each) for each in file.tpu.any_of) or (file.tpu,)


def _merged(tpu: TpuSection, alternative: Alternative) -> TpuSection:
    values = {name: getattr(alternative, name) for name in alternative.model_fields_set}
    changes = {
        name: value for name, value in values.items() if value is not None or name in NULLABLE
    }
    capacity = changes.get("capacity", tpu.capacity)
    return tpu.model_copy(update={"any_of": (), "spot": capacity in SPOT, **changes})


def with_tpu(file: StackFile, tpu: TpuSection) -> StackFile:
    """The stack file with one of its alternatives as its TPU."""
    if tpu is file.tpu:
        return file
    return file.model_copy(update={"tpu": tpu, "spot": tpu.spot})


def all_candidates(file: StackFile) -> tuple[Candidate, ...]:
    """Where to try to create the TPU, in the order of the stack file."""
    return tuple(
        replace(candidate, alternative=index, label=_label(tpu) if file.tpu.any_of else "")
        for index, tpu in enumerate(alternatives_of(file))
        for candidate in candidates_of(with_tpu(file, tpu), accelerator_of(tpu))
    )


def _label(tpu: TpuSection) -> str:
    return f"{tpu.capacity} {f'{tpu.slices} x ' if tpu.slices > 1 else ''}{tpu.type}"


def by_price(file: StackFile, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The candidates with the cheapest TPU first; those without a price last."""
    alternatives = alternatives_of(file)

    def price(candidate: Candidate) -> float:
        tpu = alternatives[candidate.alternative]
        each = node_price(accelerator_of(tpu), candidate.zone, capacity=tpu.capacity)
        return each.per_hour * tpu.slices if each is not None else float("inf")

    return tuple(sorted(candidates, key=price))


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
