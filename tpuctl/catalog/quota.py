"""Which quota limits a node counts against, at each API: their pools are separate.

Except where a table marks a guess, the names are from public reports, 2022 to 2026.

- Cloud TPU API: v2 pods in skypilot 0.14.1 (cloud_vm_ray_backend.py), v4 and v5e in
  marin-community/marin#87, v6e in #1612, v5p and the serving limits in run logs of 2025 and 2026.
  Each limit exists for the zone and for its region: one error reported both as exhausted.
- Compute Engine: a project's quota on 2026-08-11 (xbill9/gemma4-dev, request-quota.sh), which had
  values for regions only; TPU7x in GKE's plan-tpus, by display names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from tpuctl.catalog.compute_tpu import Api, apis_of
from tpuctl.catalog.tpu import AcceleratorType

__all__ = ["QuotaLimit", "quota_limit", "quota_limits", "usual_quota"]

Scope = Literal["zone", "region"]
Row = TypeVar("Row")


@dataclass(frozen=True)
class QuotaLimit:
    """A limit of the Cloud TPU API or of Compute Engine, named as in the Cloud Quotas API."""

    id: str
    scope: Scope
    unit: Literal["cores", "chips"]
    api: Api = "tpu"
    family: str = ""  # its dimension `tpu_family`, where it has that

    @property
    def metric(self) -> str:
        """As Compute Engine's errors and `regions` name it: `PREEMPTIBLE_TPU_V6E`."""
        return self.id.removesuffix("-per-project-region").replace("-", "_")

    def dimensions(self, location: str) -> dict[str, str]:
        """Of its quota bucket for a zone or region."""
        return {self.scope: location, **({"tpu_family": self.family} if self.family else {})}

    def amount(self, accelerator: AcceleratorType) -> int:
        """How much of the limit one node of this type uses."""
        return accelerator.cores if self.unit == "cores" else accelerator.chips


# By generation and class: the name for on-demand, the name for spot, and the unit.
_STEMS: Mapping[tuple[str, str], tuple[str, str, Literal["cores", "chips"]]] = {
    ("v2", "one"): ("TPUV2s", "TPUV2sPreemptible", "cores"),  # guesses, after the pods' names
    ("v2", "pod"): ("TPUV2sPod", "TPUV2sPreemptiblePod", "cores"),  # the first is a guess
    ("v3", "one"): ("TPUV3s", "TPUV3sPreemptible", "cores"),  # guesses, after v2
    ("v3", "pod"): ("TPUV3sPod", "TPUV3sPreemptiblePod", "cores"),  # guesses, after v2
    ("v4", "any"): ("TPUV4sPod", "TPUV4sPreemptiblePod", "cores"),  # the first is a guess
    ("v5e", "one"): ("TPUV5sLitepodServing", "TPUV5sPreemptibleLitepodServing", "chips"),
    ("v5e", "pod"): ("TPUV5sLitepod", "TPUV5sPreemptibleLitepod", "chips"),
    ("v5p", "any"): ("TPUV5P", "TPUV5PPreemptible", "cores"),
    ("v6e", "any"): ("TPUV6E", "TPUV6EPreemptible", "chips"),
}

# Of Compute Engine, by generation: the standard pool with its `tpu_family`, and the preemptible
# pool. They count chips.
_POOLS: Mapping[str, tuple[str, str, str]] = {
    "v5p": ("TPU-V5P", "", "PREEMPTIBLE-TPU-V5P"),
    "v6e": ("TPUS-PER-TPU-FAMILY", "CT6E", "PREEMPTIBLE-TPU-V6E"),
    "tpu7x": ("TPUS-PER-TPU-FAMILY", "TPU7X", "PREEMPTIBLE-TPU-TPU7X"),  # the last is a guess
}

# Documented default limits per zone of new projects, on demand and spot, by generation and class:
# docs.cloud.google.com/tpu/docs/quota, read 2026-04-09. Many projects have less.
USUAL_READ = "2026-04-09"
_USUAL: Mapping[tuple[str, str], tuple[int, int]] = {
    ("v2", "one"): (40, 120),
    ("v2", "pod"): (32, 32),
    ("v3", "one"): (40, 120),
    ("v3", "pod"): (32, 32),
    ("v4", "any"): (0, 0),
    ("v5e", "pod"): (512, 1536),
    ("v5p", "any"): (128, 768),
    ("v6e", "any"): (512, 1536),
}


# What a region of Compute Engine inherits without a value of its own, as above.
_USUAL_POOLS: Mapping[str, tuple[int, int]] = {"v6e": (0, 1536)}


def usual_quota(accelerator: AcceleratorType, spot: bool, api: Api = "tpu") -> int | None:
    """The default limit in a zone, or in a region of Compute Engine; None if not documented."""
    if api == "compute":
        row = _USUAL_POOLS.get(accelerator.generation)
    else:
        row = _of_size(_USUAL, accelerator)
    return row[1 if spot else 0] if row is not None else None


def quota_limits(
    accelerator: AcceleratorType, spot: bool, api: Api = "tpu"
) -> tuple[QuotaLimit, ...]:
    """The limits at an API, of the zone before those of the region; empty if it does not sell the
    type.

    Preemptible and flex-start nodes count against the spot limits. Flex-start of Compute Engine
    takes from the standard pool if the preemptible pool has no room. `v5litepod-1`, `-4` and `-8`
    count against the serving limits, whatever they are used for.
    """
    if api not in apis_of(accelerator):
        return ()
    if api == "compute":
        standard, family, preemptible = _POOLS[accelerator.generation]
        pool = preemptible if spot else standard
        limit_id = f"{pool}-per-project-region"
        return (QuotaLimit(limit_id, "region", "chips", "compute", "" if spot else family),)
    row = _of_size(_STEMS, accelerator)
    if row is None:
        return ()
    on_demand, preemptible, unit = row
    stem = preemptible if spot else on_demand
    return (
        QuotaLimit(f"{stem}PerProjectPerZoneForTPUAPI", "zone", unit),
        QuotaLimit(f"{stem}PerProjectPerRegionForTPUAPI", "region", unit),
    )


def quota_limit(accelerator: AcceleratorType, spot: bool, api: Api = "tpu") -> QuotaLimit:
    """The limit of the smallest place. Raises ValueError for types that the API does not sell."""
    for limit in quota_limits(accelerator, spot, api):
        return limit
    raise ValueError(f"no quota for {accelerator.name}")


def _of_size(table: Mapping[tuple[str, str], Row], accelerator: AcceleratorType) -> Row | None:
    size = "one" if accelerator.workers == 1 else "pod"
    generation = accelerator.generation
    return table.get((generation, size)) or table.get((generation, "any"))
